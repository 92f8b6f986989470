/* H4  Atomics on memory that only process_vm_* reaches: read, add, write under a lock word that names its holder.
 *
 * NP processes add 1 to one value, each once. Process 0 may be killed or stopped between any two steps; its write is the kernel's and happens or not.
 *
 *   lock     CAS 0 -> me; or the holder is dead: CAS holder -> me. A holder who is stopped is not robbed: the WR waits and gives up at its timeout
 *   unlock   CAS me -> 0
 *
 * Switches, each takes one rule away:
 *   PLAINROB   a dead holder's lock is stored over, not swapped
 *   ROBSTOPPED a holder who does not answer counts as dead
 *   NOROB      the lock of the dead stays
 *   ANONYMOUS  the word does not say who has it: who finds somebody dead frees it
 */
#ifndef NP
#define NP 3
#endif
#define RUN 0
#define KILL 1
#define STOP 2
byte word, value, ghost; bit fin[NP], gaveup[NP]; byte fate; bit dead0;
#ifdef ANONYMOUS
#define ME(i) 1
#else
#define ME(i) ((i)+1)
#endif
#ifdef NOROB
#define GONE(w) 0
#elif defined(ROBSTOPPED)
#define GONE(w) ((w)==ME(0))
#else
#define GONE(w) ((w)==ME(0) && dead0)
#endif

proctype process(byte i) {
  byte w, before;
  {
    do
    :: d_step { word==0 -> word = ME(i) }; break
    :: word!=0 -> w = word;
       if
       :: w==0                                                       /* just let go */
#ifndef NOROB
       :: w!=0 && GONE(w) ->
#ifdef PLAINROB
          word = ME(i); break
#else
          d_step { if :: word==w -> word = ME(i); w = 255 :: else fi };
          if :: w==255 -> break :: else fi
#endif
#endif
       :: else -> if
                  :: word!=w || GONE(w)                              /* look again */
                  :: fate==STOP && word==ME(0) && word==w && i!=0 -> goto give_up   /* the timeout */
                  fi
       fi
    od;
    before = value;
    d_step { assert(value==before); value = before + 1; ghost++ };    /* nobody else in between: none is lost */
    d_step { if :: word==ME(i) -> word = 0 :: else fi };
    fin[i] = 1; goto out;
give_up: gaveup[i] = 1;
out: false
  } unless { i==0 && fate!=RUN -> if :: fate==KILL -> dead0 = 1 :: fate==STOP -> false fi }
}
init { atomic { run process(0); run process(1);
#if NP>2
  run process(2);
#endif
  skip } }
active proctype fates() { if :: fate = KILL :: fate = STOP :: skip fi }
active proctype monitor() {
  byte i;
  timeout;
  for (i : 1 .. NP-1) { assert(fin[i] || (gaveup[i] && fate==STOP && word==ME(0))) };
  assert(fin[0] || fate!=RUN)
}
