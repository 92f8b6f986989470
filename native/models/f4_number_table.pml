/* F4  The table of SRQ numbers: claim, publish, look up, destroy, and the same index used again by another number.
 *
 * Owner 0 makes SRQ 1, serves it, and destroys it at any time; owner 1 makes SRQ 2 at the same index of the table once that is free, serves and destroys it.
 * OWNERDIES: owner 0 may be killed or stopped between any two of its steps. Else initiator 0 may be. Each initiator sends a frame to number 1 and
 * then one to number 2. An SRQ (one WQE) is in memory of its own, which is unlinked when the SRQ is destroyed and never used again. With INPLACE a
 * single owner makes SRQs 1, 2 and 3 one after the other in the same memory, and both initiators are threads of one process: memory of a
 * destroyed SRQ is used again, for an SRQ of the same shape, unless a WQE in it was TAKEN when everything committed had been drained.
 *
 *   create    CAS word FREE -> CREATING(owner); the structure and the ref; word LIVE(number); then the receives are posted: POSTED(number)
 *   look up   word is LIVE(n): copy the ref, read the word again: still LIVE(n): use the copy. Else there is no such number.
 *   take      CAS POSTED(n) -> TAKEN. Nothing POSTED: the SRQ is closing, or the number is gone from the table: fail; else park, look again, sleep
 *   destroy   word CLOSING; closing = 1; each POSTED(n) -> CLOSED by CAS; wake the parked; word FREE; unlink
 *   reap      CREATING, LIVE, CLOSING of a dead owner -> FREE by CAS; the owner's death wakes the parked (R10)
 *
 * Switches, each takes one rule away:
 *   NORECHECK    the word is not read again after the ref was copied
 *   ANONYMOUS    POSTED does not carry the number (together with NORECHECK it fails: each alone is enough where memory is never used twice)
 *   LIVEFIRST    LIVE is stored before the ref
 *   NOCLOSE      destroy leaves POSTED words alone: an initiator with an old copy goes on taking them
 *   NOWAKE       destroy wakes nobody
 *   WAKEFIRST    destroy wakes the parked before it closes
 *   NOLOOK       who has parked does not look once more whether the SRQ still lives
 *   PLAINREAP    the reaper frees a dead owner's entry by a plain store
 *   NOQUARANTINE with INPLACE: memory is used again although a WQE in it is TAKEN
 *   SELFCLOSE    with INPLACE: the destroyer waits, and whoever has a WQE of a closing SRQ closes it himself after his commit (R6's way). Fails:
 *                TAKEN names a process and not a use of the memory, so a late closer closes the WQE of another thread in the memory's next use
 */
#define RUN 0
#define KILL 1
#define STOP 2
#define FREE 0
#define CREATING(o) (1+(o))
#define LIVE(n) (10+(n))
#define CLOSING(n) (20+(n))
#ifdef ANONYMOUS
#define POSTED(n) 10
#else
#define POSTED(n) (10+(n))
#endif
#define CLOSED 1
#ifdef INPLACE
#define TAKEN(i) 20                       /* a process, not a thread of it */
#define MEM(n) b
#else
#define TAKEN(i) (20+(i))
#define MEM(n) ((n)-1)
#endif

byte tw = FREE, ref = 9;                  /* the table entry; ref 9: nothing sensible */
byte wq[3]; bit closing[3]; byte num[3];  /* the structures; num: which SRQ lives there */
byte e[2];                                /* committed entry of initiator i, for number e[i] */
bit parked[2], fd[2]; bit fin[2], ofin[2]; byte fate; bit odead, idead;

#define wakeall d_step { if :: parked[0] -> parked[0] = 0; fd[0] = 1 :: else fi; if :: parked[1] -> parked[1] = 0; fd[1] = 1 :: else fi }

inline own(o, n) {
  d_step { tw==FREE -> tw = CREATING(o) };
#ifdef LIVEFIRST
  d_step { assert(tw==CREATING(o)); tw = LIVE(n) };
#endif
  d_step { num[MEM(n)] = n; closing[MEM(n)] = 0; wq[MEM(n)] = 0 };
  ref = MEM(n);
#ifndef LIVEFIRST
  d_step { assert(tw==CREATING(o)); tw = LIVE(n) };
#endif
  wq[MEM(n)] = POSTED(n);
  wakeall;
  do
  :: d_step { e[0]==n -> e[0] = 0; assert(wq[MEM(n)]==TAKEN(0)); wq[MEM(n)] = POSTED(n) }; wakeall
  :: d_step { e[1]==n -> e[1] = 0; assert(wq[MEM(n)]==TAKEN(1)); wq[MEM(n)] = POSTED(n) }; wakeall
  :: d_step { idead && wq[MEM(n)]==TAKEN(0) && e[0]!=n -> wq[MEM(n)] = POSTED(n) }; wakeall          /* R2 */
  :: skip -> break
  od;
  skip;
  d_step { assert(tw==LIVE(n)); tw = CLOSING(n) };
#ifdef WAKEFIRST
  wakeall;
#endif
  closing[MEM(n)] = 1;
#ifndef NOCLOSE
  d_step { if :: wq[MEM(n)]==POSTED(n) -> wq[MEM(n)] = CLOSED :: else fi };
#endif
#if !defined(NOWAKE) && !defined(WAKEFIRST)
  wakeall;
#endif
#ifdef INPLACE
  d_step { if :: e[0]==n -> e[0] = 0; wq[b] = CLOSED :: else fi };
  d_step { if :: e[1]==n -> e[1] = 0; wq[b] = CLOSED :: else fi };
#ifdef SELFCLOSE
  (wq[b]==CLOSED);
#elif !defined(NOQUARANTINE)
  if :: wq[b]==TAKEN(0) -> b++ :: else fi;       /* somebody is inside: this memory is never used again */
#endif
#else
  num[MEM(n)] = 0;                               /* unlinked; the buffers are the program's again */
#endif
  d_step { assert(tw==CLOSING(n)); tw = FREE }
}

#ifdef INPLACE
active proctype owner() { byte b; own(0, 1); own(0, 2); own(0, 3); ofin[0] = 1; ofin[1] = 1; false }
#else
active proctype owner0() {
  { own(0, 1); ofin[0] = 1; false }
  unless {
#ifdef OWNERDIES
    fate!=RUN -> if :: fate==KILL -> odead = 1 :: fate==STOP -> false fi
#else
    false
#endif
  }
}
active proctype owner1() { own(1, 2); ofin[1] = 1; false }
active proctype reaper() {
  byte w;
  odead;
  w = tw;
#ifdef PLAINREAP
  if :: w==CREATING(0) || w==LIVE(1) || w==CLOSING(1) -> tw = FREE :: else fi
#else
  if :: w==CREATING(0) || w==LIVE(1) || w==CLOSING(1) -> d_step { if :: tw==w -> tw = FREE :: else fi } :: else fi
#endif
}
#ifdef PLAINREAP
active proctype reaper2() { byte w; odead; w = tw; if :: w==CREATING(0) || w==LIVE(1) || w==CLOSING(1) -> tw = FREE :: else fi }
#endif
#endif

#ifdef INPLACE
#define GONE (closing[m] || num[m]!=n)
#else
#define GONE (closing[m] || (n==1 && odead))
#endif
#define TAKE d_step { wq[m]==POSTED(n) -> assert(num[m]==n); wq[m] = TAKEN(i); got = 1 }    /* only while that SRQ lives */

inline send(i, n) {
  w = tw;
  if
  :: w==LIVE(n) -> m = ref;
#ifndef NORECHECK
     if :: tw!=w -> m = 8 :: else fi
#endif
  :: else -> m = 8                                                 /* no such number */
  fi;
  if
  :: m!=8 ->
     assert(m < 3);
     do
     :: TAKE; break
     :: else ->
        if :: GONE -> break :: else fi;
        parked[i] = 1;
        if
        :: TAKE; break
        :: else -> skip
        fi;
#ifndef NOLOOK
        if :: GONE -> break :: else fi;
#endif
        if
        :: d_step { fd[i] -> fd[i] = 0 }
        :: n==1 && odead -> break
        fi
     od
  :: else
  fi;
  if
  :: got ->
#ifdef INPLACE
     assert(num[m]==n);
     assert(num[m]==n);                                            /* the copy: into nobody else's buffers */
#endif
     d_step { assert(wq[m]==TAKEN(i)); e[i] = n };                 /* committed */
#ifdef SELFCLOSE
     if :: closing[m] -> d_step { if :: wq[m]==TAKEN(i) -> wq[m] = CLOSED; e[i] = 0 :: else fi } :: else fi
#endif
  :: else
  fi;
  d_step { w = 0; m = 0; got = 0; parked[i] = 0; fd[i] = 0 };
  (e[i]==0 || (tw!=LIVE(n) && tw!=CLOSING(n)));                                       /* one frame at a time, to keep it small */
  e[i] = 0
}

proctype initiator(byte i) {
  byte w, m; bit got;
  {
    send(i, 1);
    (tw!=LIVE(1) && tw!=CLOSING(1));                               /* told of number 2 */
    send(i, 2);
#ifdef INPLACE
    send(i, 3);
#endif
    d_step { fin[i] = 1 }; false
  } unless {
#ifdef OWNERDIES
    false
#else
    i==0 && fate!=RUN -> if :: fate==KILL -> idead = 1 :: fate==STOP -> false fi
#endif
  }
}
#ifndef INPLACE
active proctype fates() { if :: fate = KILL :: fate = STOP :: skip fi }
#endif
init { atomic {
#ifdef ONE
  fin[0] = 1;
#else
  run initiator(0);
#endif
  run initiator(1) } }

active proctype monitor() {
  timeout;
#ifdef OWNERDIES
  assert(fate==STOP || (fin[0] && fin[1]));                        /* nobody waits for what is gone */
  assert(fate==STOP || ofin[1]);                                   /* the index was used again */
#else
  assert(fin[1] || (fate==STOP && (wq[0]==TAKEN(0) || wq[1]==TAKEN(0))));
  assert(fate!=RUN || fin[0]);
  assert(ofin[0] && ofin[1])
#endif
}
