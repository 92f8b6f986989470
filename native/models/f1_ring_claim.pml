/* F1  Claiming a completion ring, publishing into it, closing it, and its entry going to another QP.
 *
 * One receiver owns a CQ (directory of ND entries, ready bits, `armed`) and an SRQ of NW work requests. Initiators are processes: A with
 * QPs 0 and 1, one after the other, may be killed or stopped between any two of its steps; B with QP 2 is healthy; C is a newcomer
 * with QP 3, started after A's death (it has A's process slot and the next incarnation). Each QP claims an entry, sends one frame (QP 2
 * two), and closes. Interleavings are sequentially consistent: the fences of B1 and B2 are taken as given, and writing the fd and clearing
 * `armed` is one step.
 *
 * The protocol: the ring is a file of its own, made before it is claimed, that is named after the receiver and goes with the receiver.
 *   claim    file ready; CAS directory entry 0 -> owner; ready bit; wake if armed; only then the first WQE is taken
 *   close    CLOSED into the ring after the last tail; ready bit; wake
 *   visit    CLOSED is read before the tail; drained; the file unlinked, the private copy forgotten, the entry's owner word 0 last
 *   watch    a visit of an unknown owner opens its presence FIFO, then tests its lock
 *   death    all entries of the dead one drained, then TAKEN -> POSTED, then its entries freed
 *
 * Switches, each takes one rule away:
 *   INCHUNK      the ring is in the initiator's chunk, which goes when the initiator is reaped (any time after its death)
 *   TAKEFIRST    the first WQE is taken before the entry is claimed
 *   BITLATE      the ready bit of the claim is set after the first WQE was taken
 *   WAKELATE     the claim's wake comes after the first WQE was taken
 *   NOLOCKTEST   the presence FIFO is opened, the lock is not tested
 *   LOCKFIRST    the lock is tested first, then the presence FIFO is opened
 *   TAILFIRST    the receiver reads the tail first, then CLOSED
 *   NOKNOWN      at a death only entries that were visited before are drained
 *   RETURNFIRST  at a death TAKEN is returned before the rings are drained
 *   NOFULLWAKE   a claimer that finds the directory full just waits
 */
#ifndef ND
#define ND 2
#endif
#define NW 2
#ifndef NA
#define NA 2      /* QPs of A */
#endif
#ifndef NB
#define NB 1      /* frames of B, of C; 0: it is left out */
#endif
#ifndef NC
#define NC 1
#endif
#define POSTED 1
#define TAKEN(p) (2+(p))
#define RUN 0
#define KILL 1
#define STOP 2
#define PROC(q) ((q)<2 -> 0 : (q)-1)     /* A=0, B=1, C=2: the incarnation, not the slot */
#define TAG(q,k) ((q)*2+(k))

byte dir[ND];                            /* owner words: 0 free, else q+1 */
bit ready[ND]; bit armed, fd;
byte word[NW];
bit file[4]; byte tail[4]; bit closed[4];
byte rw[8];                              /* ring content: which WQE; ring q has [2q..2q+1]; the tag is the position */
byte slot[NW];                           /* the copied payload */
bit committed[8]; byte delivered[8];
byte fate0; bit dead0, chunk0gone; bit fin[4];
bit signalled[4];                        /* the claim's wake is done */

#define WAKE if :: armed -> armed = 0; fd = 1 :: else fi
#define wake d_step { WAKE }

inline claim(q) {
    do
    :: d_step { dir[0]==0 -> dir[0] = (q)+1; e = 0 }; break
#if ND>1
    :: d_step { dir[1]==0 -> dir[1] = (q)+1; e = 1 }; break
#endif
    :: else ->
#ifndef NOFULLWAKE
       d_step { ready[0] = 1; ready[ND-1] = 1 };
       wake;
#endif
       (dir[0]==0 || dir[ND-1]==0)
    od;
    skip
}
inline take(q) {
    if
    :: d_step { word[0]==POSTED -> word[0] = TAKEN(PROC(q)); w = 0 }
    :: d_step { word[1]==POSTED -> word[1] = TAKEN(PROC(q)); w = 1 }
    fi
}

proctype qp(byte q; byte n) {
  byte e, k, w;
  {
    if :: q==1 -> fin[0] :: else fi;             /* A's second QP comes after its first */
    file[q] = 1;
#ifdef TAKEFIRST
    take(q);
#endif
    claim(q);
#ifndef BITLATE
    ready[e] = 1;
#ifndef WAKELATE
    d_step { WAKE; signalled[q] = 1 };
#endif
#endif
    do
    :: k < n ->
#ifdef TAKEFIRST
       if :: k > 0 -> take(q) :: else fi;
#else
       take(q);
#endif
#ifdef BITLATE
       ready[e] = 1;
       d_step { WAKE; signalled[q] = 1 };
#endif
#ifdef WAKELATE
       d_step { WAKE; signalled[q] = 1 };
#endif
       d_step { assert(word[w]==TAKEN(PROC(q)) && file[q]); slot[w] = TAG(q,k); rw[TAG(q,k)] = w };
       d_step { k++; tail[q] = k; committed[TAG(q,k-1)] = 1; w = 0 };
       d_step { ready[e] = 1; assert(dir[e]==q+1); WAKE }
    :: else -> break
    od;
    closed[q] = 1;
    /* from here the entry may already be another's: a spurious bit is a spurious visit */
    d_step { ready[e] = 1; WAKE; fin[q] = 1; e = 0; k = 0; w = 0 };
    false
  } unless {
    atomic { q<2 && fate0!=RUN -> e = 0; k = 0; w = 0 };
    if :: fate0==KILL -> dead0 = 1 :: fate0==STOP -> false fi
  }
}

#define DEAD(p) ((p)==0 && dead0)

inline consume(q, t) {
    do
    :: d_step { head[q] < t ->
         w = rw[TAG(q,head[q])];
         assert(word[w]==TAKEN(PROC(q)));
         assert(slot[w]==TAG(q,head[q]));
         delivered[TAG(q,head[q])]++;
         assert(delivered[TAG(q,head[q])]==1);
         slot[w] = 0; rw[TAG(q,head[q])] = 0; head[q]++; word[w] = POSTED; w = 0 }
    :: else -> break
    od
}
inline release(x) {                              /* the entry x of q */
    d_step { file[q] = 0; tail[q] = 0; closed[q] = 0; head[q] = 0; mapped[q] = 0; known[x] = 0 };
    dir[x] = 0
}
inline attach(x) {                               /* q, p := owner of x, or q = 255 if there is none (yet) */
    d_step { q = 255; p = 0; if :: known[x] != 0 -> q = known[x]-1; p = PROC(q) :: else fi };
    if
    :: q != 255 -> skip
    :: else ->
       d_step { if :: dir[x] != 0 -> q = dir[x]-1; p = PROC(q); known[x] = q+1 :: else fi };
       if
       :: q == 255 -> skip
       :: else ->
          d_step {
#ifdef INCHUNK
            if :: p==0 && chunk0gone -> skip :: else -> mapped[q] = 1 fi
#else
            if :: file[q] -> mapped[q] = 1 :: else fi
#endif
          };
#ifdef LOCKFIRST
          if :: DEAD(p) -> gone = 1 :: else fi;
#endif
          d_step { if :: !watched[p] -> watched[p] = 1; if :: p==0 && !dead0 -> hup0 = 1 :: else fi :: else fi };
#if !defined(NOLOCKTEST) && !defined(LOCKFIRST)
          if :: DEAD(p) -> gone = 1 :: else fi
#endif
       fi
    fi
}
inline drain() {
#ifdef TAILFIRST
    t = tail[q]; c = closed[q];
#else
    c = closed[q]; t = tail[q];
#endif
    if :: mapped[q] -> consume(q, t) :: else fi
}
inline visit(x) {
    attach(x);
    if
    :: q==255 -> skip
    :: else ->
       drain();
       if :: c -> release(x) :: else fi
    fi;
    d_step { q = 0; p = 0; t = 0; c = 0; w = 0 }
}
inline sweep() {                                 /* process 0, incarnation A, is dead: R2 */
#ifdef RETURNFIRST
    giveback();
#endif
    x = 0;
    do
    :: x < ND ->
#ifndef NOKNOWN
       attach(x);
#else
       d_step { q = 255; if :: known[x] != 0 -> q = known[x]-1; p = PROC(q) :: else fi };
#endif
       if :: q!=255 && p==0 -> drain() :: else fi; x++
    :: else -> break
    od;
#ifndef RETURNFIRST
    skip;
    giveback();
#endif
    x = 0;
    do
    :: x < ND -> d_step { q = 255; if :: known[x] != 0 -> q = known[x]-1; p = PROC(q) :: else fi };
       if :: q!=255 && p==0 -> release(x) :: else fi; x++
    :: else -> break
    od;
    skip;
    d_step { x = 0; q = 0; p = 0; t = 0; c = 0; gone = 0; seen0 = 1 }
}
inline giveback() {
    d_step { if :: word[0]==TAKEN(0) -> word[0] = POSTED :: else fi; if :: word[1]==TAKEN(0) -> word[1] = POSTED :: else fi }
}

active proctype receiver() {
  byte q, p, t, w, x; bit c;
  byte known[ND], head[4]; bit mapped[4], watched[3], hup0, seen0, gone;   /* its private state */
poll:
  do
  :: d_step { ready[0] -> ready[0] = 0 }; visit(0)
#if ND>1
  :: d_step { ready[1] -> ready[1] = 0 }; visit(1)
#endif
  :: gone -> sweep()                             /* found dead at a first visit */
  :: else -> break
  od;
  armed = 1;
  if :: ready[0] -> goto poll :: else fi;
#if ND>1
  if :: ready[1] -> goto poll :: else fi;
#endif
  if
  :: d_step { fd -> fd = 0 }; goto poll
  :: dead0 && hup0 && !seen0 -> sweep(); goto poll       /* R8: the presence FIFO hangs up */
  fi
}

#ifdef INCHUNK
active proctype reaper() { dead0; chunk0gone = 1 }
#endif
active proctype fates() { if :: fate0 = KILL :: fate0 = STOP :: skip fi }
#if NC>0
active proctype newcomer() { dead0; run qp(3, NC) }
#endif
init { atomic {
  word[0] = POSTED; word[1] = POSTED;
  run qp(0, 1);
#if NA>1
  run qp(1, 1);
#endif
#if NB>0
  run qp(2, NB)
#endif
} }

#define HELD0(x) (fate0==STOP && (dir[x]==1 || dir[x]==2))
active proctype monitor() {
  timeout;
  assert(fate0==STOP || (word[0]==POSTED && word[1]==POSTED));             /* no WQE is lost */
  assert(word[0]==POSTED || word[1]==POSTED);                             /* a stopped one holds one */
  if                                                                       /* everything committed was delivered */
  :: fate0!=STOP -> assert(committed[0]==delivered[0] && committed[2]==delivered[2])
  :: else
  fi;
  assert(fate0!=RUN || (fin[0] && (NA<2 || fin[1])));
  assert((ND==1 && HELD0(0)) || NB==0 || (delivered[4]==1 && (NB<2 || delivered[5]==1)));      /* the healthy one */
  assert(!dead0 || NC==0 || delivered[6]==1);                                       /* and the newcomer progress */
  /* no entry or file of a closed or (once it had signalled) dead QP is left */
  assert(!file[2] || (ND==1 && HELD0(0)));
  assert(!dead0 || !file[3]);
  assert(fate0!=RUN || (!file[0] && !file[1] && dir[0]==0 && dir[ND-1]==0));
  assert(!dead0 || !signalled[0] || !file[0]);
  assert(!dead0 || !signalled[1] || !file[1])
}
