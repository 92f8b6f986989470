/* A3  Messages that travel in the completion ring (R35).
 *
 * Sender 0 sends N0 messages, sender 1 N1; each has a ring of RSZ entries with SL slots for messages. Sender 0 may be KILLED or STOPPED
 * between any two of its steps. A message is written into the slot of its position, then the entry, then the tail; when no slot is free it is
 * copied into the buffer of the WQE, as a system call would. The receiver has NW WQEs. It polls, with TWO in two threads, under a lock that is the process's own:
 * copy the WQE's scatter list, give the index back, copy the slot into the buffer that the list named, store the head. Another
 * thread posts whatever index is free, each time with a new buffer. The receiver reaps the dead sender: what is in its ring stays, what it had
 * taken and not committed is posted again. When nothing can move any more every delivered message still is in its buffer.
 *
 * Switches, each takes one rule away:
 *   TAILFIRST  the tail is published before the slot is written
 *   NOSLOTS    fewer slots than entries, and nobody looks whether one is free
 *   HEADFIRST  the head is stored before the slot was copied
 *   LISTLATE   the scatter list is read after the index was given back
 *   NOLOCK     the pollers have no lock
 *   RETURNALL  the reaper does not look into the ring of the dead
 */
#ifndef N0
#define N0 2
#endif
#ifndef N1
#define N1 1
#endif
#ifndef NW
#define NW 2
#endif
#define RSZ 2
#ifndef SL
#define SL 1
#endif
#ifndef NB
#define NB 4                             /* postings, a buffer each */
#endif
#define POSTED 1
#define TAKEN(s) (2+(s))
#define RUN 0
#define KILL 1
#define STOP 2

byte word[NW], list[NW]; bit out[NW];    /* state word, the buffer that its list names, posted and not consumed */
byte bufA[NB], bufB[NB];                 /* a message is copied in two steps */
byte holds[NB];                          /* what was delivered there */
byte slA[4], slB[4];                     /* slots: ring s has [s*RSZ ..] */
byte ew[4], et[4]; bit ec[4];            /* entries: WQE, tag, carried */
byte head[2], tail[2], next;
bit lock, gotten[4]; byte fate = RUN; bit dead, reaped, done1;
#define E(s,p) ((s)*RSZ + (p)%RSZ)
#define S(s,p) ((s)*RSZ + (p)%SL)

inline write_slot() { slA[S(s,tail[s])] = tag; slB[S(s,tail[s])] = tag }
proctype sender(byte s; byte n) {
  byte k, w, tag; bit c;
  {
    do
    :: k < n ->
       tag = 1 + 2*s + k;
       (tail[s] - head[s] < RSZ);
#ifdef NOSLOTS
       c = 1;
#else
       c = (tail[s] - head[s] < SL);
#endif
       if
       :: d_step { word[0]==POSTED -> word[0] = TAKEN(s); w = 0 }
#if NW>1
       :: d_step { word[1]==POSTED -> word[1] = TAKEN(s); w = 1 }
#endif
       fi;
#ifndef TAILFIRST
       if :: c -> write_slot() :: else -> bufA[list[w]] = tag; bufB[list[w]] = tag fi;
#endif
       d_step { ew[E(s,tail[s])] = w; et[E(s,tail[s])] = tag; ec[E(s,tail[s])] = c };
       tail[s]++;
#ifdef TAILFIRST
       slA[S(s,(tail[s]-1))] = tag; slB[S(s,(tail[s]-1))] = tag;
#endif
       d_step { k++; w = 0; tag = 0; c = 0 }
    :: else -> break
    od;
    k = 0; if :: s==1 -> done1 = 1 :: else fi;
    false
  } unless {
    atomic { (s==0 && fate!=RUN) -> k = 0; w = 0; tag = 0; c = 0 };
    if :: fate==KILL -> dead = 1 :: fate==STOP -> false fi
  }
}

proctype poller() {
  byte s, w, tag, b, h; bit c;
  do
  :: if :: head[0]!=tail[0] -> s = 0 :: head[1]!=tail[1] -> s = 1 fi;
#ifndef NOLOCK
     d_step { !lock -> lock = 1 };
#endif
     h = head[s];
     if
     :: h != tail[s] ->
        d_step { w = ew[E(s,h)]; tag = et[E(s,h)]; c = ec[E(s,h)] };
#ifdef LISTLATE
        d_step { assert(out[w] && word[w]==TAKEN(s)); out[w] = 0 };
        b = list[w];
#else
        d_step {
#ifndef NOLOCK
          assert(out[w] && word[w]==TAKEN(s));
#endif
          b = list[w]; out[w] = 0
        };
#endif
#ifdef HEADFIRST
        head[s] = h + 1;
#endif
        if :: c -> bufA[b] = slA[S(s,h)]; bufB[b] = slB[S(s,h)] :: else fi;
#ifndef HEADFIRST
        head[s] = h + 1;
#endif
        d_step {                          /* its completion: whole, and the first of its number */
          assert(bufA[b]==tag && bufB[b]==tag && !gotten[tag] && holds[b]==0);
          gotten[tag] = 1; holds[b] = tag
        }
     :: else
     fi;
#ifndef NOLOCK
     lock = 0;
#endif
     d_step { s = 0; w = 0; tag = 0; b = 0; h = 0; c = 0 }
  od
}

active proctype poster() {
  byte w;
  do
  :: next < NB ->
     if
     :: d_step { !out[0] -> w = 0 }
#if NW>1
     :: d_step { !out[1] -> w = 1 }
#endif
     fi;
     list[w] = next;
     d_step { next++; out[w] = 1; word[w] = POSTED; w = 0 }
  :: else -> break
  od
}

active proctype reaper() {
  bit in[NW]; byte p, w;
  dead;
#ifndef RETURNALL
  d_step { !lock -> lock = 1 };
  p = head[0];
  do :: p != tail[0] -> d_step { in[ew[E(0,p)]] = 1; p++ } :: else -> break od;
  lock = 0;
#endif
  do
  :: w < NW -> d_step { if :: out[w] && word[w]==TAKEN(0) && !in[w] -> word[w] = POSTED :: else fi; in[w] = 0; w++ }
  :: else -> break
  od;
  reaped = 1; w = 0; p = 0
}

active proctype fates() { if :: fate = KILL :: fate = STOP :: skip fi }
init { atomic { run sender(0, N0); run sender(1, N1); run poller();
#ifdef TWO
  run poller()
#endif
} }

active proctype monitor() {
  byte b, w;
  timeout;
  assert(fate==STOP || (done1 && (N1 < 1 || gotten[3])));                         /* who lives gets through */
  assert(fate!=RUN || (gotten[1] && (N0 < 2 || gotten[2])));
  assert(fate!=KILL || reaped);
  assert(head[0]==tail[0] && head[1]==tail[1]);                       /* what was committed is delivered */
  do :: b < NB -> assert(holds[b]==0 || (bufA[b]==holds[b] && bufB[b]==holds[b])); b++ :: else -> break od;
  do :: w < NW -> assert(!out[w] || word[w]==POSTED || fate==STOP); w++ :: else -> break od
}
