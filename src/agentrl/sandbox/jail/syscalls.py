"""Numbers of the system calls that a sandboxed program may make, per architecture (from the kernel's uapi headers).

aarch64 uses the generic table and has none of the old calls that ``*at`` calls replaced (open, fork, poll, ...).
"""

from __future__ import annotations


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (item.split(":") for item in text.split())}


X86_64 = _table(
    """
read:0 write:1 readv:19 writev:20 pread64:17 pwrite64:18 preadv:295 pwritev:296 preadv2:327 pwritev2:328
open:2 openat:257 creat:85 close:3 close_range:436 lseek:8 stat:4 fstat:5 lstat:6 newfstatat:262 statx:332
access:21 faccessat:269 faccessat2:439 readlink:89 readlinkat:267 getdents:78 getdents64:217 getcwd:79
chdir:80 fchdir:81 mkdir:83 mkdirat:258 rmdir:84 unlink:87 unlinkat:263 rename:82 renameat:264 renameat2:316
link:86 linkat:265 symlink:88 symlinkat:266 truncate:76 ftruncate:77 fallocate:285 fsync:74 fdatasync:75
flock:73 chmod:90 fchmod:91 fchmodat:268 utime:132 utimes:235 futimesat:261 utimensat:280 umask:95
statfs:137 fstatfs:138 fadvise64:221 sendfile:40 copy_file_range:326 dup:32 dup2:33 dup3:292 fcntl:72
ioctl:16 pipe:22 pipe2:293 select:23 pselect6:270 poll:7 ppoll:271 epoll_create:213 epoll_create1:291
epoll_ctl:233 epoll_wait:232 epoll_pwait:281 epoll_pwait2:441 eventfd:284 eventfd2:290 timerfd_create:283
timerfd_settime:286 timerfd_gettime:287 signalfd:282 signalfd4:289 socketpair:53 socket:41 sendto:44
recvfrom:45 sendmsg:46 recvmsg:47 shutdown:48 getsockname:51 getpeername:52 getsockopt:55 mmap:9 munmap:11
mprotect:10 mremap:25 madvise:28 msync:26 brk:12 rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15
rt_sigpending:127 rt_sigsuspend:130 rt_sigtimedwait:128 sigaltstack:131 kill:62 tgkill:234 pause:34 alarm:37
getitimer:36 setitimer:38 timer_create:222 timer_settime:223 timer_gettime:224 timer_getoverrun:225
timer_delete:226 clone:56 clone3:435 fork:57 vfork:58 wait4:61 waitid:247 exit:60 exit_group:231
set_tid_address:218 set_robust_list:273 futex:202 futex_waitv:449 rseq:334 membarrier:324 sched_yield:24
sched_getaffinity:204 sched_getparam:143 sched_getscheduler:145 sched_get_priority_max:146
sched_get_priority_min:147 getcpu:309 getpid:39 gettid:186 getppid:110 getpgrp:111 getpgid:121 getsid:124
setsid:112 setpgid:109 getuid:102 geteuid:107 getgid:104 getegid:108 getresuid:118 getresgid:120
getgroups:115 getpriority:140 setpriority:141 getrlimit:97 setrlimit:160 prlimit64:302 getrusage:98
times:100 sysinfo:99 uname:63 prctl:157 nanosleep:35 clock_nanosleep:230 clock_gettime:228 clock_getres:229
gettimeofday:96 time:201 getrandom:318 restart_syscall:219 getxattr:191 lgetxattr:192 fgetxattr:193
listxattr:194 llistxattr:195 flistxattr:196 setxattr:188 lsetxattr:189 fsetxattr:190 openat2:437 fchmodat2:452
"""
)

AARCH64 = _table(
    """
read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 preadv:69 pwritev:70 preadv2:286 pwritev2:287
openat:56 close:57 close_range:436 lseek:62 fstat:80 newfstatat:79 statx:291 faccessat:48 faccessat2:439
readlinkat:78 getdents64:61 getcwd:17 chdir:49 fchdir:50 mkdirat:34 unlinkat:35 renameat:38 renameat2:276
linkat:37 symlinkat:36 truncate:45 ftruncate:46 fallocate:47 fsync:82 fdatasync:83 flock:32 fchmod:52
fchmodat:53 utimensat:88 umask:166 statfs:43 fstatfs:44 fadvise64:223 sendfile:71 copy_file_range:285 dup:23
dup3:24 fcntl:25 ioctl:29 pipe2:59 pselect6:72 ppoll:73 epoll_create1:20 epoll_ctl:21 epoll_pwait:22
epoll_pwait2:441 eventfd2:19 timerfd_create:85 timerfd_settime:86 timerfd_gettime:87 signalfd4:74
socketpair:199 socket:198 sendto:206 recvfrom:207 sendmsg:211 recvmsg:212 shutdown:210 getsockname:204
getpeername:205 getsockopt:209 mmap:222 munmap:215 mprotect:226 mremap:216 madvise:233 msync:227 brk:214
rt_sigaction:134 rt_sigprocmask:135 rt_sigreturn:139 rt_sigpending:136 rt_sigsuspend:133 rt_sigtimedwait:137
sigaltstack:132 kill:129 tgkill:131 getitimer:102 setitimer:103 timer_create:107 timer_settime:110
timer_gettime:108 timer_getoverrun:109 timer_delete:111 clone:220 clone3:435 wait4:260 waitid:95 exit:93
exit_group:94 set_tid_address:96 set_robust_list:99 futex:98 futex_waitv:449 rseq:293 membarrier:283
sched_yield:124 sched_getaffinity:123 sched_getparam:121 sched_getscheduler:120 sched_get_priority_max:125
sched_get_priority_min:126 getcpu:168 getpid:172 gettid:178 getppid:173 getpgid:155 getsid:156 setsid:157
setpgid:154 getuid:174 geteuid:175 getgid:176 getegid:177 getresuid:148 getresgid:150 getgroups:158
getpriority:141 setpriority:140 getrlimit:163 setrlimit:164 prlimit64:261 getrusage:165 times:153
sysinfo:179 uname:160 prctl:167 nanosleep:101 clock_nanosleep:115 clock_gettime:113 clock_getres:114
gettimeofday:169 getrandom:278 restart_syscall:128 getxattr:8 lgetxattr:9 fgetxattr:10 listxattr:11
llistxattr:12 flistxattr:13 setxattr:5 lsetxattr:6 fsetxattr:7 openat2:437 fchmodat2:452
"""
)
