package mux_test
import ("testing";"time";"os";"strings";"os/exec";"github.com/cilium/ebpf";"golang.org/x/sys/unix"
"github.com/unet-go/unet/mux";"github.com/unet-go/unet/endpoint")
func mem() string { o,_:=exec.Command("sh","-c","grep -E 'MemFree|MemAvailable|^Slab|Percpu' /proc/meminfo | tr '\n' ' '").Output(); return string(o)}
func TestZZPorts(t *testing.T){
 if os.Getenv("ZZ")=="" {t.Skip()}
 l:=openLab(t,mux.ModeGeneric)
 t.Log(mem())
 var gs []*endpoint.Grant; var ls []*mux.Lease
 s:=time.Now(); var first time.Duration
 for i:=0;i<256;i++ { g,le,err:=l.mux.OpenEndpoint(t.Context(),endpoint.Request{Geometry:small,Tags:[]endpoint.Tag{udpTag("0.0.0.0:0")}}); must(t,err); gs=append(gs,g); ls=append(ls,le); if i==0 {first=time.Since(s)} }
 t.Log("open 256",time.Since(s),"first",first)
 t.Log(mem())
 fds,_:=os.ReadDir("/proc/self/fd"); t.Log("fds",len(fds))
 s=time.Now()
 for i:=range gs { must(t,ls[i].Close()); must(t,gs[i].Close()) }
 t.Log("close 256",time.Since(s))
}
func TestZZStats(t *testing.T){
 if os.Getenv("ZZ")=="" {t.Skip()}
 for _,mode:=range []mux.Mode{mux.ModeGeneric,mux.ModeNative} {
 l:=openLab(t,mode); if mode==mux.ModeNative {listenGRO(t,l.B)}
 a:=l.open(udpTag("10.0.0.1:7000")); 
 b:=kernelUDP(t,l.B,"10.0.0.2:9000"); must(t,b.SetReadBuffer(1<<22))
 c,err:=ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME)); must(t,err)
 f:=datagram(l.B.LinkAddr,l.A.LinkAddr,"10.0.0.1:7000","10.0.0.2:9000",strings.Repeat("x",64))
 for i:=0;i<20000;i++ { a.send(f); sendTo(t,b,"10.0.0.1:7000","hello"); for { if _,ok:=a.poll();!ok {break} } }
 for id:=ebpf.ProgramID(0);; { n,err:=ebpf.ProgramGetNextID(id); if err!=nil {break}; id=n; p,err:=ebpf.NewProgramFromID(n); if err!=nil{continue}; in,_:=p.Info(); st,_:=p.Stats(); if st!=nil&&st.RunCount>1000 {t.Log(mode,in.Name,st.RunCount,st.Runtime/time.Duration(st.RunCount))}; p.Close() }
 c.Close()
 }
}
