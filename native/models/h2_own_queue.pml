/* H2  A connected QP's own receive queue (one WQE) through RESET: the memory is used again for the next connection.
 *
 * The owner serves connection 1, goes through RESET at any time, and serves connection 2. Initiator 0 is connected in connection 1 and sends one frame;
 * it may be killed or stopped between any two steps (fate). Initiator 1 is connected in connection 2. SAME: both are threads of one process, so that
 * TAKEN does not tell them apart.
 *
 *   check    state RTS and the epoch of the health word are those of the connection: copy the reference, read both again (R24)
 *   take     CAS POSTED(queue, epoch) -> TAKEN(process)
 *   commit   an entry in the own ring (one per initiating QP); R1
 *   RESET    state RESET; CAS POSTED -> CLOSED; wait for TAKEN, but not for ever; purge the rings; still TAKEN: other memory (R25); next epoch
 *   poll     an entry counts only if it comes from the ring of the QP that we are connected to and the word says TAKEN(its process)
 *
 * Switches, each takes one rule away:
 *   NOEPOCH       POSTED does not carry the epoch
 *   NOPEER        entries of any ring count (with SAME)
 *   NOQUARANTINE  the memory is used again although somebody is inside
 *   NOCLOSE       RESET leaves POSTED alone
 *
 * Purging the rings is what programs want (VERBS 1, lesson 4); nothing here depends on it, because of the rule for polls.
 */
#define RUN 0
#define KILL 1
#define STOP 2
#define RTS 1
#define RESET 0
#define CLOSED 1
#ifdef NOEPOCH
#define POSTED(e) 10
#else
#define POSTED(e) (10+(e))
#endif
#ifdef SAME
#define TAKEN(i) 20
#else
#define TAKEN(i) (20+(i))
#endif

byte st = RESET, epoch = 0, ref = 9;  /* the record: state; health's epoch; which memory */
byte wq[2];                           /* the WQE's word in either memory */
byte use[2];                          /* whose buffers the WQE names: the connection; 0: the program has them back */
bit ring[2]; byte at[2];              /* entry of initiator i, and the memory whose WQE it took */
bit fin[2], lost; byte fate, got[3]; bit dead0, ofin;

#define READY(c) (st==RTS && epoch==(c))

inline consume(i, c) {
  d_step { ring[i] -> ring[i] = 0;
    if
#ifdef NOPEER
    :: wq[ref]==TAKEN(i) ->
#else
    :: i==(c)-1 && wq[ref]==TAKEN(i) ->
#endif
       assert(i==(c)-1);              /* a completion of this connection, by its peer */
       got[c]++; use[ref] = c; wq[ref] = POSTED(c)
    :: else                           /* dropped */
    fi }
}
inline reap(c) {
  d_step { dead0 && !ring[0] && wq[ref]==TAKEN(0) && (c)==1 -> wq[ref] = POSTED(c) }
}

active proctype owner() {
  byte b;
  ref = 0; epoch = 1; st = RTS; use[0] = 1; wq[0] = POSTED(1);
  do
  :: consume(0, 1)
  :: reap(1)
  :: skip -> break
  od;
  st = RESET;
#ifndef NOCLOSE
  d_step { if :: wq[0]==POSTED(1) -> wq[0] = CLOSED :: else fi };
#endif
  if                                  /* waits for the copy; gives up at any time */
  :: (wq[0]!=TAKEN(0) || ring[0] || dead0)
  :: skip
  fi;
  d_step { if :: ring[0] && wq[0]==TAKEN(0) -> wq[0] = CLOSED; ring[0] = 0 :: else fi };
  d_step { if :: dead0 && wq[0]==TAKEN(0) -> wq[0] = CLOSED :: else fi };
  b = 0;
#ifndef NOQUARANTINE
  if :: wq[0]==TAKEN(0) -> b = 1 :: else fi;
#endif
  d_step { if :: b==0 -> use[0] = 0 :: else fi };     /* the program has the buffers of the WQE back; those that are quarantined it was told of */
  wq[b] = 0; ref = b; epoch = 2;
  st = RTS;
  d_step { use[b] = 2; wq[b] = POSTED(2) };
  do
  :: consume(0, 2)
  :: consume(1, 2)
  :: got[2]==1 -> break
  od;
  ofin = 1;
  do :: consume(0, 2) od
}

inline send(i, c) {
  do
  :: READY(c) ->
     m = ref;
     if :: !READY(c) -> goto gone :: else fi;
     if
     :: d_step { wq[m]==POSTED(c) -> assert(use[m]==c || i==1); wq[m] = TAKEN(i) } ->
        assert(use[m]==c || (i==0 && st==RESET) || m!=ref);   /* the copy goes into buffers of this connection, or of one that has ended */
        d_step { at[i] = m; ring[i] = 1 };
        break
     :: !READY(c) -> goto gone        /* woken, or its timeout */
     fi
  :: i==0 && epoch==2 -> goto gone
  od;
gone: skip
}

active proctype initiator0() {
  byte m;
  { send(0, 1); fin[0] = 1; false }
  unless { fate!=RUN -> if :: fate==KILL -> dead0 = 1 :: fate==STOP -> false fi }
}
active proctype initiator1() {
  byte m;
  READY(2);
  send(1, 2); fin[1] = 1
}
active proctype fates() { if :: fate = KILL :: fate = STOP :: skip fi }

active proctype monitor() {
  timeout;
  assert(fin[1]);                     /* the second connection works, whatever became of the first */
  assert(ofin && got[2]==1);
  assert(fate!=RUN || fin[0])
}
