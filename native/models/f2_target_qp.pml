/* F2  The record of an XRC target QP: it lives as long as its last holder, in whichever process, and is then used again.
 *
 * One record (word and holders) in `root`. Process 0 creates number 1 and closes it; process 1 opens number 1 (from a number that it was
 * told: it may come at any time, also when the record is another's already) and closes it; process 2 creates number 2 in the same record
 * once it is free, and closes it. VICTIM (0 or 1) may be killed or stopped between any two of its steps; survivor 4 reaps
 * the dead; with TWO a survivor 3 does so too and may be killed over it.
 *
 * word: FREE, CREATING(process), LIVE(number), CLOSING(number, process). A holder is an incarnation in a word of its own.
 *   create   CAS FREE -> CREATING(me); put the own holder; CREATING -> LIVE
 *   open     put the own holder; read the word: LIVE(n) is success; CLOSING(n, *): help, CAS to LIVE(n), look again if that fails;
 *            anything else: take the own holder away, run the closing step, EINVAL
 *   close    take the own holder away, run the closing step
 *   reap     take the dead one's holder away by CAS, run the closing step
 *   closing step, on whatever number the record now has:
 *            LIVE(n): scan the holders, none: CAS to CLOSING(n, me), scan again, none: CAS to FREE; else CAS back to LIVE and start again
 *            CLOSING(n, q) or CREATING(q) of a dead q: taken over by CAS.  Everything else: leave it.
 * Who reads a number takes CLOSING(n) for LIVE(n).
 *
 * Switches, each takes one rule away:
 *   ONESTEP     the closing step goes LIVE -> FREE after one scan
 *   NOHELP      an opener that finds CLOSING fails at once (passes too, but may refuse a number that a third process still holds)
 *   NORETRY     a closer that has put CLOSING back to LIVE does not start again
 *   UNDOONLY    an opener that finds another number takes its holder away and runs no closing step
 *   ANONYMOUS   CLOSING does not name the closer: nobody may take it over, nor tell a stopped closer's from its own
 *   NOTAKEOVER  CLOSING of a dead closer is left alone
 *   HOLDERLATE  the creator puts its holder after LIVE
 */
#ifndef VICTIM
#define VICTIM 0
#endif
#define RUN 0
#define KILL 1
#define STOP 2
#define FREE 0
#define CREATING(p)  (10+(p))
#define LIVE(n)      (20+(n))
#ifdef ANONYMOUS
#define CLOSING(n,p) (30+10*(n))
#else
#define CLOSING(n,p) (30+10*(n)+(p))
#endif
#define NUMBER(w)    ((w)>=30 -> ((w)-30)/10 : (w)-20)

byte word = FREE;
bit holder[3];
byte fate; bit dead[5]; bit open[3];     /* open: the process has a handle that was handed out and not yet given back */
bit told; byte fin; bit opened1, refused1, done2; bit rkill;

/* holders are read one after the other */
inline scan() { any = 0; any = any || holder[0]; any = any || holder[1]; any = any || holder[2] }

inline closing(me) {
  do
  :: w = word;
     if
     :: w >= LIVE(1) && w <= LIVE(2) ->
        scan();
        if
        :: any -> break
        :: else ->
#ifdef ONESTEP
           d_step { if :: word==w -> word = FREE :: else fi }; break
#else
           d_step { if :: word==w -> word = CLOSING(NUMBER(w),me); w = word :: else -> w = 0 fi }
#endif
        fi
#ifndef NOTAKEOVER
#ifndef ANONYMOUS
     :: w >= 30 && dead[w%10] -> d_step { if :: word==w -> word = CLOSING(NUMBER(w),me); w = word :: else -> w = 0 fi }
#endif
     :: w >= 10 && w < 20 && dead[w%10] -> d_step { if :: word==w -> word = FREE :: else fi }; break
#endif
     :: else -> break
     fi;
     if
     :: w == 0 -> skip                                        /* lost the CAS: look again */
     :: else ->
        scan();
        if
        :: any -> d_step { if :: word==w -> word = LIVE(NUMBER(w)) :: else fi };
#ifdef NORETRY
           break
#endif
        :: else -> d_step { if :: word==w -> word = FREE :: else fi }; break     /* fails when an opener helped */
        fi
     fi
  od;
  w = 0; any = 0
}
inline create(me, n) {
  d_step { word==FREE -> word = CREATING(me) };
#ifndef HOLDERLATE
  holder[me] = 1;
#endif
  d_step { assert(word==CREATING(me)); word = LIVE(n) };
#ifdef HOLDERLATE
  holder[me] = 1;
#endif
  open[me] = 1
}
inline close(me) { open[me] = 0; holder[me] = 0; closing(me) }
#define DIE(me) if :: fate==KILL -> atomic { dead[me] = 1; open[me] = 0 } :: fate==STOP -> false fi

active proctype p0() {
  byte w; bit any;
  { create(0, 1); told = 1; close(0); fin++; false }
  unless { VICTIM==0 && fate!=RUN -> DIE(0) }
}
active proctype p1() {
  byte w; bit any;
  {
    told;
    holder[1] = 1;
    do
    :: w = word;
       if
       :: w==LIVE(1) -> open[1] = 1; break
       :: w >= 40 && w < 50 ->
#ifdef NOHELP
          break
#else
          d_step { if :: word==w -> word = LIVE(1) :: else fi }
#endif
       :: else -> break
       fi
    od;
    w = 0;
    if
    :: open[1] -> opened1 = 1; close(1)
    :: else -> refused1 = 1; holder[1] = 0;
#ifndef UNDOONLY
       closing(1)
#endif
    fi;
    fin++; false
  }
  unless { VICTIM==1 && fate!=RUN -> DIE(1) }
}
active proctype p2() {
  byte w; bit any;
  (told || dead[0]); create(2, 2); close(2); done2 = 1
}
inline reap(me, p) { d_step { if :: holder[p]==1 -> holder[p] = 0 :: else fi }; closing(me) }
#ifdef TWO
active proctype r3() {
  byte w; bit any;
  { dead[VICTIM]; reap(3, VICTIM); false } unless { rkill -> dead[3] = 1 }
}
#endif
active proctype r4() {
  byte w; bit any; bit a, b;
  do
  :: dead[VICTIM] && !a -> reap(4, VICTIM); a = 1
  :: dead[3] && !b -> closing(4); b = 1
  od
}
active proctype fates() { if :: fate = KILL; rkill = 1 :: fate = KILL :: fate = STOP :: skip fi }

/* a handle that was handed out leads to its number */
active proctype inv() {
  if
  :: (open[0] || open[1]) && !(word==LIVE(1) || (word>=40 && word<50)) -> assert(false)
  :: open[2] && !(word==LIVE(2) || (word>=50 && word<60)) -> assert(false)
  fi
}
active proctype monitor() {
  timeout;
  if
  :: fate==STOP -> assert(fin || (VICTIM==0 && !told))           /* what the stopped one was closing waits for it; nobody else waits */
  :: else ->
     assert(word==FREE && done2);                                /* what everybody closed is free, and was used again */
     assert(holder[0]==0 && holder[1]==0 && holder[2]==0)
  fi
}
