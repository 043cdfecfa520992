package transport

const sysSendmmsg = 307 // package syscall's list ends before it
