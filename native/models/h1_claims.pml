/* H1  Tables that everybody reads and few change: attachments to multicast groups, flow rules (claims.h).
 *
 * Process A attaches to group 1, detaches, attaches to group 2 with whatever record is free; it may be killed between any two of its steps. Process B
 * attaches to group 1. A sender sends to group 1 twice; it keeps what it has read of the table until the count of changes moves.
 *
 *   attach   CAS word 0 -> CLAIMED(me); the contents, in two halves; word LIVE(me, use), a use that is new each time; count + 1
 *   detach   CAS word LIVE -> 0; count + 1
 *   send     read the count; another than known: forget what is known, and read the table: word LIVE: copy both halves, read the word again, still the
 *            same: use the copy. Then deliver to whom is known.
 *   reap     each word that names the dead -> 0 by CAS from what was read; count + 1; only then the process's slot is free
 *
 * Asserted: what is used is never half of one and half of another; a send that begins after attach() has returned reaches that member; one that begins after
 * detach() has returned, or after the member was reaped, does not; in the end nothing of the dead is in the table.
 *
 * Switches, each takes one rule away:
 *   COUNTFIRST   the count moves before the change          SCANFIRST  the sender reads the table before the count
 *   NORECHECK    the word is not read again                 NOUSE      LIVE carries no use
 *   NOREAPCOUNT  the reaper does not move the count         PLAINREAP  two reapers, which store 0 plainly
 *   HALFREAP     the slot is freed before the records are
 */
#define NR 2
#define A 1
#define B 2
#define CLAIMED(o) (o)
#ifdef NOUSE
#define LIVE(o,u) (10*(o))
#else
#define LIVE(o,u) (10*(o)+(u))
#endif
#define ISLIVE(x) ((x) >= 10)
#define OWNER(x) ((x) >= 10 -> (x)/10 : (x))

byte w[NR], lo[NR], hi[NR];
byte count = 1;
bit on[3], off[3];        /* attach() to group 1 has returned; detach() from it has, or the process was reaped */
bit dead, reaped, killed, bdone, sdone;

inline attach(me, use, group) {
  if
  :: d_step { w[0]==0 -> w[0] = CLAIMED(me); r = 0 }
  :: d_step { w[1]==0 -> w[1] = CLAIMED(me); r = 1 }
  fi;
#ifdef COUNTFIRST
  count++;
#endif
  lo[r] = group;
  hi[r] = group;
  w[r] = LIVE(me, use);
#ifndef COUNTFIRST
  count++;
#endif
}
inline detach(me, use) {
  d_step { assert(w[r]==LIVE(me, use)); w[r] = 0 };
  count++
}

active proctype a() {
  byte r;
  {
    attach(A, 1, 1);
    on[A] = 1;
    on[A] = 0;
    detach(A, 1);
    off[A] = 1;
    attach(A, 2, 2);
    false
  } unless { d_step { killed -> dead = 1; on[A] = 0 } }
}
active proctype b() { byte r; attach(B, 1, 1); on[B] = 1; bdone = 1 }
active proctype fate() { if :: killed = 1 :: skip fi }

inline reap() {
  dead;
#ifdef HALFREAP
  off[A] = 1; reaped = 1;
#endif
  i = 0;
  do
  :: i < NR ->
     x = w[i];
     if
     :: x != 0 && OWNER(x)==A ->
#ifdef PLAINREAP
        w[i] = 0
#else
        d_step { if :: w[i]==x -> w[i] = 0 :: else fi }
#endif
     :: else
     fi;
     i++
  :: else -> break
  od;
#ifndef NOREAPCOUNT
  count++;
#endif
  off[A] = 1; reaped = 1
}
active proctype reaper() { byte i, x; reap() }
#ifdef PLAINREAP
active proctype reaper2() { byte i, x; reap() }
#endif

active proctype sender() {
  byte n, i, x, l, h, seen, now;
  bit mustA, mustB, notA, hasA, hasB;
  do
  :: n < 2 ->
     d_step { mustA = on[A]; mustB = on[B]; notA = off[A] };
#ifndef SCANFIRST
     now = count;
#endif
     if
#ifdef SCANFIRST
     :: true ->
#else
     :: now != seen ->
#endif
        hasA = 0; hasB = 0; i = 0;
#ifdef SCANFIRST
        if :: count == seen -> i = NR :: else fi;
#endif
        do
        :: i < NR ->
           x = w[i];
           if
           :: ISLIVE(x) ->
              l = lo[i];
              h = hi[i];
              if
#ifdef NORECHECK
              :: true ->
#else
              :: w[i]==x ->
#endif
                 assert(l==h);
                 if
                 :: l==1 && OWNER(x)==A -> hasA = 1
                 :: l==1 && OWNER(x)==B -> hasB = 1
                 :: else
                 fi
              :: else
              fi
           :: else
           fi;
           i++
        :: else -> break
        od;
#ifdef SCANFIRST
        now = count;
#endif
        seen = now
     :: else
     fi;
     /* A that has begun to detach, or has died, while we send may get it or not. */
     d_step {
       assert(!mustA || hasA || !on[A]);
       assert(!mustB || hasB);
       assert(!notA || !hasA);
       n++; x = 0; l = 0; h = 0; i = 0; mustA = 0; mustB = 0; notA = 0
     }
  :: else -> break
  od;
  sdone = 1
}

active proctype monitor() {
  timeout;
  assert(sdone && bdone);
  assert(!dead || (reaped && (w[0]==0 || OWNER(w[0])!=A) && (w[1]==0 || OWNER(w[1])!=A)));
  assert(OWNER(w[0])==B || OWNER(w[1])==B)
}
