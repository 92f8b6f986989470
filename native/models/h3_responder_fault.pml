/* H3  A responder's fault is found by its peer: the health word by a foreign CAS, against its owner's RESET and new connection.
 *
 * The peer is connected in epoch 1, finds a fault, and may be killed or stopped between any two steps. The owner polls; at any time it may go through RESET, once,
 * and then is healthy in epoch 2, connected to nobody at fault.
 *
 *   fail     CAS health (1, healthy) -> (1, fault); set the QP's bit in the owner's table; attention++; write the wake FIFO
 *   attend   attention is not what was seen: remember it, then take the bits, then look at the health of those QPs; a fault of the current epoch: ERR
 *   death    all bits are set and attention grows: it may have died before it told (as R8 for rings)
 *   RESET    state RESET; health (2, healthy)
 *
 * Switches, each takes one rule away:
 *   PLAIN      the fault is stored, not swapped in
 *   NOEPOCH    RESET does not change the epoch
 *   ATTFIRST   attention grows before the bit is set
 *   SEENLATE   what was seen is remembered after the bits were taken
 *   NODEATH    a peer's death is no reason to look
 *   NOWAKE     nobody is woken: an owner that sleeps never looks
 */
#define RUN 0
#define KILL 1
#define STOP 2
#define RTS 1
#define ERR 2
#define RESET 0
byte epoch = 1; bit fault;                       /* the health word: one word, changed in one step */
byte st = RTS; bit bitset, fd; byte attention = 1, seen;   /* another QP was at fault before */
byte fate; bit dead, handled, told, didreset, pfin;

active proctype peer() {
  bit won;
  {
    /* healthy in epoch 1 when it was checked */
#ifdef PLAIN
    skip;
    d_step { epoch = 1; fault = 1 };
#else
#ifdef NOEPOCH
    d_step { if :: !fault -> fault = 1; won = 1 :: else fi };
    if :: !won -> goto out :: else fi;
#else
    d_step { if :: epoch==1 && !fault -> fault = 1; won = 1 :: else fi };
    if :: !won -> goto out :: else fi;
#endif
#endif
#ifdef ATTFIRST
    attention++;
    bitset = 1;
#else
    bitset = 1;
    attention++;
#endif
#ifndef NOWAKE
    fd = 1;
#endif
    told = 1;
out: pfin = 1; false
  } unless { fate!=RUN -> if :: fate==KILL -> dead = 1 :: fate==STOP -> false fi }
}

inline look() {
  if
  :: attention!=seen ->
#ifndef SEENLATE
     seen = attention;
#endif
     if
     :: d_step { bitset -> bitset = 0 } ->
        d_step { if :: fault && st==RTS -> assert(!didreset); st = ERR :: else fi }
     :: else
     fi;
#ifdef SEENLATE
     seen = attention
#endif
  :: else
  fi
}

active proctype owner() {
  do
  :: look()
  :: d_step { fd -> fd = 0 }; look()
  :: !didreset && st!=RESET ->                     /* modify to RESET, INIT, RTR, RTS */
     st = RESET;
#ifdef NOEPOCH
     fault = 0;
#else
     d_step { epoch = 2; fault = 0 };
#endif
     didreset = 1;
     st = RTS
  :: dead && !handled ->
     handled = 1;
#ifndef NODEATH
     bitset = 1; attention++; fd = 1
#endif
  :: skip -> (fd || (dead && !handled))            /* sleeps */
  od
}

active proctype fates() { if :: fate = KILL :: fate = STOP :: skip fi }
active proctype monitor() {
  timeout;
  /* Nobody stopped in the middle: a fault of the connection that there is shows. */
  assert(fate==STOP || !fault || st==ERR);
  assert(!didreset || !fault || st==ERR);
  assert(!didreset || st==RTS)
}
