# SPDX-License-Identifier: Apache-2.0
"""What everyday tools are asked to do inside, for test_everyday.py.

A row: id, the tools that the host must have for it, a shell script, what its output must contain.
"""

TOOLS = [
    ("sh-pipeline", "sh", "seq 1 1000 | sort -rn | head -1", "1000"),
    ("bash-job-control", "bash", "bash -c 'set -m; sleep 60 & kill %1; wait; echo ended'", "ended"),
    ("bash-process-substitution", "bash", """bash -c 'diff <(echo a) <(echo a) && echo same'""", "same"),
    (
        "coreutils",
        "stat",
        """
cd /tmp &&
mkdir -p c &&
echo x > c/f &&
cp -a c d &&
ln -s f c/l &&
mv d e &&
du -s e &&
rm -r c e &&
mktemp &&
echo fine
""",
        "fine",
    ),
    ("users", "getent", "whoami; id; getent passwd nobody; getent group root; echo ~", "nobody"),
    ("chown", "chown", "touch /tmp/o && chown 1234:1234 /tmp/o && stat -c %u /tmp/o", "1234"),
    ("time-zone", "date", "TZ=Europe/Berlin date +%Z", "CE"),
    ("locale", "locale", """LC_ALL=C.UTF-8 python3 -c 'print(len("ä"))'""", "1"),
    ("ps", "ps", "ps aux", "ps aux"),
    ("top", "top", "TERM=dumb top -b -n 1 | head -5", "Tasks"),
    ("free", "free", "free -m", "Mem:"),
    ("df", "df", "df -h /", "/"),
    ("uptime", "uptime", "uptime; nproc; uname -a", "load"),
    ("lsof-by-proc", "ls", "ls -l /proc/self/fd", "->"),
    (
        "git",
        "git",
        """
cd /tmp &&
rm -rf r c &&
git init -q r &&
cd r &&
git config user.email a@b &&
git config user.name n &&
echo 1 > f &&
git add f &&
git commit -qm one &&
git clone -q /tmp/r /tmp/c &&
git -C /tmp/c log --oneline &&
git gc -q &&
git status -s &&
echo fine
""",
        "fine",
    ),
    (
        "gcc",
        "gcc",
        r"""
cd /tmp &&
printf '#include <stdio.h>\nint main(void){puts("built");}' > a.c &&
gcc -O2 -o a a.c &&
./a
""",
        "built",
    ),
    (
        "g++",
        "g++",
        r"""
cd /tmp &&
printf '#include <thread>\n#include <iostream>\n' > b.cc &&
echo 'int main(){std::thread t([]{std::cout<<"built";});t.join();}' >> b.cc &&
g++ -pthread -o b b.cc &&
./b
""",
        "built",
    ),
    (
        "clang",
        "clang",
        """
cd /tmp && printf 'int main(void){return 0;}' > l.c && clang -o l l.c && ./l && echo built
""",
        "built",
    ),
    (
        "address-sanitizer",
        "gcc",
        """
cd /tmp &&
printf 'int main(void){char *p=__builtin_malloc(1);p[1]=1;return 0;}' > s.c &&
gcc -fsanitize=address -o s s.c &&
./s 2>&1 | head -3
""",
        "AddressSanitizer",
    ),
    (
        "make",
        "make gcc",
        r"""
mkdir -p /tmp/m &&
cd /tmp/m &&
printf 'all: a b c\n%%:\n\techo $@ > $@\n' > Makefile &&
make -j4 &&
cat a b c
""",
        "c",
    ),
    (
        "cmake",
        "cmake make",
        r"""
mkdir -p /tmp/cm &&
cd /tmp/cm &&
printf 'cmake_minimum_required(VERSION 3.5)\nproject(x C)\nadd_executable(x x.c)\n' > CMakeLists.txt &&
echo 'int main(void){return 0;}' > x.c &&
cmake . > log &&
make &&
./x &&
echo built
""",
        "built",
    ),
    (
        "meson",
        "meson ninja",
        r"""
mkdir -p /tmp/me &&
cd /tmp/me &&
printf "project('x','c')\nexecutable('x','x.c')\n" > meson.build &&
echo 'int main(void){return 0;}' > x.c &&
meson setup b > log &&
ninja -C b &&
b/x &&
echo built
""",
        "built",
    ),
    (
        "gdb",
        "gdb gcc",
        r"""
cd /tmp &&
printf 'int f(int x){return x+1;}\nint main(void){return f(41)-42;}' > g.c &&
gcc -g -o g g.c &&
gdb -q -batch -ex 'break f' -ex run -ex bt -ex 'print x' -ex continue ./g
""",
        "$1 = 41",
    ),
    ("gdb-attach", "gdb", "sleep 60 & gdb -q -batch -p $! -ex bt -ex detach; kill $!", "detached]"),
    ("strace", "strace", """strace -f -e trace=execve sh -c '/bin/true' 2>&1""", 'execve("/bin/true"'),
    ("ltrace-by-ld", "ls", "LD_DEBUG=libs ls / 2>&1 | head -3", "find library"),
    ("valgrind", "valgrind", "valgrind -q --error-exitcode=9 /bin/true && echo clean", "clean"),
    ("perf-free-time", "bash", """bash -c 'time sleep 0.1' 2>&1""", "real"),
    ("node", "node", """node -e 'console.log([1,2,3].map(x=>x*2).join())'""", "2,4,6"),
    (
        "node-worker",
        "node",
        """
node -e '
const {Worker} = require("worker_threads");
new Worker("require(`worker_threads`).parentPort.postMessage(7)", {eval: true})
    .on("message", m => console.log("got", m))'
""",
        "got 7",
    ),
    (
        "node-child",
        "node",
        """
node -e 'console.log(require("child_process").execSync("echo child").toString())'
""",
        "child",
    ),
    (
        "node-http",
        "node",
        """
node -e '
const http = require("http");
const server = http.createServer((q, r) => r.end("served")).listen(0, "127.0.0.1", () =>
    http.get({host: "127.0.0.1", port: server.address().port}, r => {
        r.on("data", d => console.log(`${d}`));
        r.on("end", () => process.exit());
    }))'
""",
        "served",
    ),
    (
        "npm",
        "npm",
        r"""
cd /tmp &&
rm -rf np &&
mkdir -p np/lib np/app &&
cd np/lib &&
printf '{"name":"mylib","version":"1.0.0","main":"i.js"}' > package.json &&
echo 'module.exports=()=>"from lib"' > i.js &&
npm pack --silent &&
cd ../app &&
echo 'console.log(require("mylib")())' > app.js &&
printf '{"name":"app","version":"1.0.0","scripts":{"go":"node app.js"}}' > package.json &&
npm install --offline --no-audit --no-fund ../lib/mylib-1.0.0.tgz &&
npm run go
""",
        "from lib",
    ),
    (
        "python-threads",
        "python3",
        """
python3 -c '
import threading
done = []
threads = [threading.Thread(target=done.append, args=(i,)) for i in range(50)]
[t.start() for t in threads]
[t.join() for t in threads]
print(sum(done))'
""",
        "1225",
    ),
    (
        "python-multiprocessing",
        "python3",
        """
python3 -c 'import multiprocessing as m
if __name__=="__main__":
 with m.Pool(3) as p: print(sum(p.map(abs,range(-50,1))))'
""",
        "1275",
    ),
    (
        "python-shared-memory",
        "python3",
        """
python3 -c '
from multiprocessing.shared_memory import SharedMemory
a = SharedMemory(create=True, size=1000)
b = SharedMemory(a.name)
a.buf[0] = 7
print("shared", b.buf[0])
b.close()
a.close()
a.unlink()'
""",
        "shared 7",
    ),
    (
        "python-subprocess",
        "python3",
        """
python3 -c 'import subprocess as s; print(s.run(["echo","sub"],capture_output=True,text=True).stdout)'
""",
        "sub",
    ),
    (
        "python-asyncio",
        "python3",
        """
python3 -c 'import asyncio as a
async def f():
 p=await a.create_subprocess_exec("echo","async",stdout=-1)
 print((await p.communicate())[0].decode())
a.run(f())'
""",
        "async",
    ),
    (
        "python-sqlite",
        "python3",
        """
cd /tmp &&
python3 -c '
import sqlite3
c = sqlite3.connect("p.db")
c.execute("pragma journal_mode=wal")
c.execute("create table t(x)")
c.execute("insert into t values(6*7)")
c.commit()
print(c.execute("select x from t").fetchone())'
""",
        "(42,)",
    ),
    (
        "python-venv",
        "python3",
        """
cd /tmp && python3 -m venv v && v/bin/python -c 'import sys; print(sys.prefix)'
""",
        "/tmp/v",
    ),
    ("python-pty", "python3", """python3 -c 'import pty; pty.spawn(["tty"])'""", "/dev/pts/"),
    (
        "python-inotify-and-select",
        "python3",
        """
python3 -c '
import os, select
r, w = os.pipe()
e = select.epoll()
e.register(r, 1)
os.write(w, b"x")
print(len(e.poll(1)))'
""",
        "1",
    ),
    (
        "perl",
        "perl",
        r"""
perl -MList::Util=sum -e 'print sum(1..10), "\n";
if (fork == 0) { print "child\n";
exit } wait'
""",
        "child",
    ),
    (
        "java",
        "java javac",
        """
mkdir -p /tmp/j &&
cd /tmp/j &&
echo 'public class H{public static void main(String[] a){' > H.java &&
echo 'System.out.println("java "+a.length);}}' >> H.java &&
javac H.java &&
java H 1 2
""",
        "java 2",
    ),
    (
        "go",
        "go",
        r"""
mkdir -p /tmp/go &&
cd /tmp/go &&
printf 'package main\nimport "fmt"\n' > m.go &&
echo 'func main(){c:=make(chan int);go func(){c<-7}();fmt.Println("go",<-c)}' >> m.go &&
HOME=/tmp GOFLAGS=-mod=mod GO111MODULE=off GOCACHE=/tmp/gocache go run m.go
""",
        "go 7",
    ),
    (
        "rust",
        "rustc",
        """
mkdir /tmp/rust && cd /tmp/rust && printf 'fn main(){println!("rust {}", 7);}' > r.rs && rustc r.rs && ./r
""",
        "rust 7",
    ),
    ("tcl", "tclsh", """echo 'puts [expr 6*7]' | tclsh""", "42"),
    (
        "tmux",
        "tmux",
        """
export TERM=screen;
tmux new-session -d -s t 'echo in tmux;
sleep 20' &&
sleep 1 &&
tmux capture-pane -p -t t;
tmux kill-server
""",
        "in tmux",
    ),
    (
        "curl",
        "curl python3",
        """
cd /tmp &&
echo page > page &&
(python3 -m http.server 8099 --bind 127.0.0.1 >/dev/null 2>&1 & echo $! > pid) &&
sleep 1.5 &&
curl -s http://127.0.0.1:8099/page http://localhost:8099/page;
kill $(cat pid)
""",
        "page\npage",
    ),
    (
        "curl-v6",
        "curl python3",
        """
cd /tmp &&
echo page > page &&
(python3 -m http.server 8098 --bind ::1 >/dev/null 2>&1 & echo $! > pid6) &&
sleep 1.5 &&
curl -s 'http://[::1]:8098/page';
kill $(cat pid6)
""",
        "page",
    ),
    (
        "ssh-keygen",
        "ssh-keygen",
        """
cd /tmp && rm -f k k.pub && ssh-keygen -q -t ed25519 -N '' -f k && ssh-keygen -lf k
""",
        "ED25519",
    ),
    (
        "openssl",
        "openssl",
        """
cd /tmp &&
openssl req -x509 -newkey rsa:2048 -nodes -keyout x.key -out x.crt -subj /CN=x -days 1 2>/dev/null &&
openssl x509 -in x.crt -noout -subject
""",
        "CN = x",
    ),
    (
        "gpg",
        "gpg",
        """
export GNUPGHOME=/tmp/gpg &&
mkdir -p -m 700 $GNUPGHOME &&
gpg --batch --passphrase '' --quick-gen-key a@b default default 2>/dev/null;
gpg --list-keys
""",
        "a@b",
    ),
    (
        "sqlite3",
        "sqlite3",
        """
cd /tmp && sqlite3 s.db 'create table t(x); insert into t values(42); select x from t;'
""",
        "42",
    ),
    (
        "tar-gzip-xz-zip",
        "tar gzip xz",
        """
cd /tmp &&
mkdir -p z &&
seq 1 10000 > z/f &&
tar czf z.tgz z &&
tar cJf z.txz z &&
mkdir -p y &&
tar xf z.txz -C y &&
cmp z/f y/z/f &&
gzip -t z.tgz &&
echo same
""",
        "same",
    ),
    ("zip", "zip unzip", "cd /tmp && echo z > zf && zip -q z.zip zf && unzip -p z.zip", "z"),
    (
        "tar-as-root-keeps-owners",
        "tar",
        """
cd /tmp &&
mkdir -p w &&
touch w/f &&
chown 1000:1000 w/f &&
tar cf w.tar w &&
rm -r w &&
tar xpf w.tar &&
stat -c %u w/f
""",
        "1000",
    ),
    ("rsync", "rsync", "cd /tmp && mkdir -p rs && echo r > rs/f && rsync -a rs/ rt/ && cat rt/f", "r"),
    ("jq", "jq", """echo '{"a":[1,2]}' | jq '.a[1]'""", "2"),
    (
        "awk-sed-grep",
        "awk sed grep",
        r"""
printf 'a 1\nb 2\n' | awk '{s+=$2} END{print s}' | sed 's/3/three/' | grep th
""",
        "three",
    ),
    (
        "find-xargs",
        "find xargs",
        """
find /usr/share/doc -maxdepth 1 | head -50 | xargs -P 4 -n 5 echo | wc -l
""",
        "10",
    ),
    (
        "vim",
        "vim",
        """
cd /tmp && echo old > v.txt && vim -es -u NONE -c '%s/old/new/' -c wq v.txt; cat v.txt
""",
        "new",
    ),
    (
        "ed",
        "ed",
        r"""
cd /tmp && echo old > e.txt && printf 's/old/new/\nw\nq\n' | ed -s e.txt && cat e.txt
""",
        "new",
    ),
    ("nano", "nano", "nano --version", "nano"),
    ("less", "less", "echo text | less -FX", "text"),
    ("su", "su", """su -s /bin/sh -c 'id -un' nobody""", "nobody"),
    ("setpriv", "setpriv", "setpriv --reuid 1000 --regid 1000 --clear-groups id -u", "1000"),
    (
        "nohup-background",
        "nohup",
        """
cd /tmp &&
nohup sh -c 'sleep 0.3;
echo later > late' >/dev/null 2>&1 & sleep 1;
cat /tmp/late
""",
        "later",
    ),
    ("flock", "flock", "flock /tmp/lock echo locked", "locked"),
    (
        "tail-follow",
        "tail",
        """
cd /tmp &&
echo one > tf &&
(timeout 2 tail -f tf > tout & sleep 0.5;
echo two >> tf;
wait);
cat tout
""",
        "two",
    ),
    ("script", "script", """script -qc 'tty' /dev/null""", "/dev/pts/"),
    ("mkfifo", "mkfifo", "cd /tmp && rm -f ff && mkfifo ff && (echo through > ff &) && cat ff", "through"),
    (
        "unix-socket",
        "python3",
        """
cd /tmp &&
python3 -c 'import socket,os
s=socket.socket(1);s.bind("us");s.listen()
c=socket.socket(1);c.connect("us");print("connected");os.unlink("us")'
""",
        "connected",
    ),
    ("busybox", "busybox", """busybox sh -c 'busybox ls / | busybox wc -l; echo box'""", "box"),
    ("bc", "bc", """echo '2^64' | bc""", "18446744073709551616"),
    ("file", "file", "file -L /bin/sh", "ELF"),
    ("resolver-of-localhost", "getent", "getent hosts localhost", "localhost"),
    ("man-of-the-shell-limits", "bash", """bash -c 'ulimit -a'""", "open files"),
    ("apt-version", "apt-get", "apt-get --version", "apt "),
    ("apt-check", "apt-get", "apt-get check && echo consistent", "consistent"),
    ("apt-config", "apt-config", "apt-config dump", "APT::Architecture"),
    ("dpkg-query", "dpkg", "dpkg --print-architecture && dpkg -l | tail -1 && echo asked", "asked"),
]
