/* F5  Two threads of one process poll one CQ.
 *
 * An initiator publishes NM completions into its ring. Threads X and Y poll with room for one completion each; the rings are read under a lock that is the
 * process's own. X may stop polling for ever after any completion it got (it has work to do). Y arms, polls once more, and sleeps when it finds nothing.
 * X arms too, sometimes (ARMS). Store buffers are left out (B1, B2 have them).
 *
 *   poll     no ready bit: nothing, without the lock. Else under the lock: clear the bit, read the tail, take one; not empty: set the bit, and then
 *            do what a waker does: read `armed`, write the fd, clear by CAS
 *
 * Switches, each takes one rule away:
 *   NOREWAKE   who leaves the ring non-empty sets the bit and wakes nobody: another thread may have armed and looked while the bit was clear
 *   ALWAYSLOCK as NOREWAKE, but a poll looks at the bits under the lock only (passes: the price is a lock for each empty poll)
 *   NOREBIT    who leaves the ring non-empty does not set the bit
 *   NOLOCK     no lock
 *   BITLATE    the bit is cleared after the ring was read
 */
#ifndef NM
#define NM 3
#endif
byte tail, head, armed, epoch, seen; bit rdy, fd, lock;

inline wake() {
  a = armed;
  if :: a -> fd = 1; d_step { if :: armed==a -> armed = 0 :: else fi } :: else fi;
  a = 0
}
active proctype initiator() {
  byte k, a;
  do
  :: k < NM -> k++; tail = k; rdy = 1; wake()
  :: else -> break
  od
}

inline poll() {
  got = 0;
  if
#ifdef ALWAYSLOCK
  :: true ->
#else
  :: rdy ->
#endif
#ifndef NOLOCK
     d_step { !lock -> lock = 1 };
#endif
#ifdef BITLATE
     b = rdy;
#else
     d_step { b = rdy; rdy = 0 };
#endif
     if
     :: b ->
        t = tail; h = head;
        if
        :: h != t ->
           d_step { h++; head = h; got = 1; seen++ };
           if
           :: h != t ->
#ifndef NOREBIT
              rdy = 1;
#if !defined(NOREWAKE) && !defined(ALWAYSLOCK)
              wake();
#endif
#endif
              skip
           :: else
           fi
        :: else
        fi
     :: else
     fi;
#ifdef BITLATE
     if :: b && h == t -> rdy = 0 :: else fi;
#endif
#ifndef NOLOCK
     lock = 0;
#endif
     d_step { t = 0; h = 0; b = 0 }
#ifndef ALWAYSLOCK
  :: else
#endif
  fi
}

active proctype x() {
  byte t, h, a; bit got, b;
  do
  :: poll(); if :: got -> if :: break :: skip fi :: else fi
  :: d_step { epoch < 6 -> epoch++; armed = epoch }
  :: break
  od
}
active proctype y() {
  byte t, h, a; bit got, b;
  do
  :: poll();
     if
     :: got
     :: else ->
        d_step { epoch++; armed = epoch };
        poll();
        if
        :: got
        :: else -> d_step { fd -> fd = 0 }
        fi
     fi
  od
}
active proctype monitor() { timeout; assert(head == NM && seen == NM) }
