/* F3  Joining and leaving a fabric: the folder, its lock, the process table, presence locks, reaping, and the last one out.
 *
 * NP processes join, stay, and leave, at any time. Process 0 may be killed or stopped between any two of its steps (VICTIM), or 0 and then 1 killed (VICTIM1). The folder is an inode
 * behind a path; flock on it is a kernel lock, released at death; so are presence locks (OFD locks on a byte of `root` for each slot). Two slots.
 * A member that finds another dead reaps it without the folder's lock, at any time, once, and may be held up for long in it.
 *
 *   join   mkdir; open; flock; is the path still this inode? else again. root missing or unfinished: nobody is here: remove all names, make root.
 *          Reap each slot whose presence lock is free. Take a FREE slot: presence lock, number, own file, then LIVE(number); unlock
 *   leave  flock; own file away, slot FREE, presence lock off; reap; no presence lock held by anybody: remove all files, root last, then the folder; unlock
 *   reap   word LIVE(i) or REAPING(i); *then* the lock is tested (without taking it); CAS to REAPING(i); files of i; CAS REAPING(i) -> FREE
 *
 * Switches, each takes one rule away:
 *   NORECHECK   the joiner does not compare the path with its inode once it has the lock
 *   LIVEFIRST   the slot says LIVE before its presence lock is held
 *   TESTFIRST   the reaper tests the lock and then reads the word
 *   NOLEAVELOCK the last one removes the folder without the lock
 *   LATEUNLOCK  who leaves lets go of the folder before its presence lock; LIVEONLY with it: only a slot that says LIVE is taken for a member
 *   KNOWNONLY   the last one removes the files of the slots, not whatever names it finds (one may have died between its file and LIVE)
 *   PLAINFREE   the reaper stores FREE without comparing
 *   NOFINISH    a slot that says REAPING is left to whoever began
 *   TRYLOCK     the reaper tests the lock by taking it for a moment: the last one out takes the slot for a living member's
 */
#ifndef NP
#define NP 3
#endif
#define RUN 0
#define KILL 1
#define STOP 2
#define FREE 0
#define LIVE(i) (10+(i))
#define REAPING(i) (20+(i))
#define NI 4                                   /* inodes; 0: no folder */
#define W(s) word[ino*2+(s)]
#define L(s) lk[ino*2+(s)]
#define FILE(i) file[ino*5+(i)]

byte path, inodes;
byte fl[NI], root[NI], number[NI];             /* flock: holder+1; root: 0 none, 1 half made, 2 ready; its counter of incarnations */
byte word[NI*2], lk[NI*2]; bit file[NI*5];
byte fate; bit fate1, deadx[2], joined[NP], done[NP], leaving[NP], mustclean;
bit bad[NP];
#define dead0 deadx[0]
#define UNFLOCK d_step { if :: ino && fl[ino]==p+1 -> fl[ino] = 0 :: else fi }
#define UNLOCK  d_step { if :: ino && L(0)==p+1 -> L(0) = 0 :: else fi; if :: ino && L(1)==p+1 -> L(1) = 0 :: else fi }

inline reap(x) {
#ifdef TESTFIRST
  d_step { if :: L(x)==0 -> t = 1 :: else -> t = 0 fi };
  w = W(x);
#else
  w = W(x);
#ifdef TRYLOCK
  d_step { if :: L(x)==0 -> t = 1; L(x) = 99 :: else -> t = 0 fi };
  if :: t -> L(x) = 0 :: else fi;
#else
  d_step { if :: L(x)==0 -> t = 1 :: else -> t = 0 fi };
#endif
#endif
#ifdef NOFINISH
  if
  :: t && w >= LIVE(0) && w < REAPING(0) ->
#else
  if
  :: t && w != FREE ->
#endif
     d_step { if :: W(x)==w -> w = w%10; W(x) = REAPING(w) :: else -> w = 0 fi };
     if
     :: w ->
        FILE(w) = 0;
#ifdef PLAINFREE
        W(x) = FREE
#else
        d_step { if :: W(x)==REAPING(w) -> W(x) = FREE :: else fi }
#endif
     :: else
     fi
  :: else
  fi;
  d_step { w = 0; t = 0 }
}
inline sweepnames() { d_step { FILE(1) = 0; FILE(2) = 0; FILE(3) = 0; FILE(4) = 0 } }

proctype process(byte p) {
  byte ino, s, i, w, r; bit t;
  {
    do
    :: if :: d_step { path==0 -> inodes++; path = inodes } :: else fi;    /* mkdir */
       ino = path;                                                       /* open */
       if
       :: ino ->
          d_step { fl[ino]==0 -> fl[ino] = p+1 };                        /* flock */
#ifdef NORECHECK
          break
#else
          if :: path==ino -> break :: else -> fl[ino] = 0 fi
#endif
       :: else
       fi
    od;
    if
    :: root[ino]!=2 ->
       sweepnames();
       root[ino] = 1;
       d_step { number[ino] = 0; W(0) = FREE; W(1) = FREE; root[ino] = 2 }
    :: else -> reap(0); reap(1)
    fi;
    do
    :: d_step { W(0)==FREE && L(0)==0 -> s = 0 }; break
    :: d_step { W(1)==FREE && L(1)==0 -> s = 1 }; break
    :: d_step { L(0) && L(1) -> leaving[p] = 1; fl[ino] = 0 }; goto out  /* full */
    :: else -> reap(0); reap(1);                                         /* died meanwhile */
       d_step { r++; assert(r < 3) }
    od;
    r = 0;
#ifndef LIVEFIRST
    d_step { assert(L(s)==0); L(s) = p+1 };
#endif
    d_step { number[ino]++; i = number[ino] };
    d_step { assert(!FILE(i)); FILE(i) = 1 };                            /* O_EXCL */
    W(s) = LIVE(i);
#ifdef LIVEFIRST
    L(s) = p+1;
#endif
    d_step { fl[ino] = 0; joined[p] = 1 };

    /* a member */
    do
    :: t = 0; break
    :: p && !bad[p] && (dead0 || deadx[1]) -> bad[p] = 1; reap(1-s)
    od;
    skip;

#ifndef NOLEAVELOCK
    d_step { fl[ino]==0 -> fl[ino] = p+1; leaving[p] = 1; joined[p] = 0 };
#else
    d_step { leaving[p] = 1; joined[p] = 0 };
#endif
    FILE(i) = 0;
    W(s) = FREE;
#ifndef LATEUNLOCK
    L(s) = 0;
#endif
    reap(0); reap(1);
#ifdef LIVEONLY
#define PRESENT(x) (L(x) && L(x)!=p+1 && W(x)>=LIVE(0) && W(x)<REAPING(0))
#else
#define PRESENT(x) (L(x) && L(x)!=p+1)
#endif
    if
    :: !PRESENT(0) && !PRESENT(1) ->
#ifndef KNOWNONLY
       sweepnames();
#endif
       root[ino] = 0;
       d_step { if :: path==ino && !root[ino] && !FILE(1) && !FILE(2) && !FILE(3) && !FILE(4) -> path = 0 :: else fi }   /* rmdir */
    :: else
    fi;
#ifndef NOLEAVELOCK
    fl[ino] = 0;
#endif
#ifdef LATEUNLOCK
    d_step { if :: L(s)==p+1 -> L(s) = 0 :: else fi };
#endif
    skip;
out: skip;
    d_step { done[p] = 1; s = 0; i = 0; ino = 0 };
    false
  } unless {
    (p==0 && fate!=RUN) || (p==1 && fate1);
    if
    :: p==0 && fate==STOP -> false
    :: else ->                                                           /* descriptors are closed one after the other */
       joined[p] = 0;
       if :: UNFLOCK; UNLOCK; :: UNLOCK; UNFLOCK fi;
       d_step { deadx[p] = 1; mustclean = (p==0 && fate1==0 && !leaving[1]) || (NP>2 && !leaving[NP-1]) }
    fi
  }
}
active proctype fates() {
#ifdef VICTIM
  if :: fate = KILL :: fate = STOP :: skip fi;
#endif
#ifdef VICTIM1
  fate = KILL; fate1 = 1;
#endif
  skip
}
init { atomic { run process(0); run process(1);
#if NP>2
  run process(2)
#endif
} }

/* a member is in the folder that everyone finds, in a slot that is its own */
#define MINE(p) ((word[path*2]>=10 && word[path*2]<20 && lk[path*2]==(p)+1) || (word[path*2+1]>=10 && word[path*2+1]<20 && lk[path*2+1]==(p)+1))
active proctype inv() {
  if
  :: joined[1] && !fate1 && !(path && root[path]==2 && MINE(1)) -> assert(false)
  :: joined[NP-1] && !(path && root[path]==2 && MINE(NP-1)) -> assert(false)
  :: joined[0] && fate==RUN && !(path && root[path]==2 && MINE(0)) -> assert(false)
  fi
}
active proctype monitor() {
  timeout;
  if
  :: fate==STOP -> skip                                                  /* who waits for a stopped one's lock gives up after a while */
  :: else ->
     assert((fate1 || done[1]) && done[NP-1]);
     assert(fate==KILL || done[0]);
     assert(path==0 || (fate==KILL && !mustclean))                       /* nothing is left */
  fi
}
