/* E2  Words of holds that are given out anew (R15), with descriptors that come late.
 *
 * One publisher with NW words and one block, receivers 0 and 1, two generations of the block. Each offer takes a word that is 0, writes
 * beside it whom it is for, then OFFERED. An error completion does not say whether the descriptor arrived: the offer is taken back by CAS,
 * and the word may be the next one's at once, while the first descriptor is still on its way. Receiver 0 and the publisher may be killed;
 * the other one clears what R16 says by reading the word, then whom it is for, then CAS.
 *
 *   (none)      words carry a serial that is never used again; the receiver looks whom the word is for
 *   GENERATION  words carry the block's generation, and the descriptor is trusted to be of its receiver
 */
#ifndef NW
#define NW 1
#endif
#define NG 2
#define OFFERED(s) (2*(s))
#define HELD(s) (2*(s)+1)

byte word[NW]; byte rcv[NW];
byte gen = 0; byte serial = 0;
chan d[2] = [4] of { byte, byte, byte };      /* word, what the word says if it is ours, generation */
byte lease[2];                                /* generation that the receiver reads; 0 none */
byte held[2];                                 /* word that it holds, plus 1 */
bit kp, k0, pdead, r0dead, pfin;

#ifdef GENERATION
#define STAMP gen
#else
#define STAMP serial
#endif

inline clear(r) {                             /* every word that is for r */
  c = 0;
  do
  :: c < NW ->
     v = word[c];
     if :: v != 0 && rcv[c] == r -> d_step { if :: word[c] == v -> word[c] = 0 :: else fi } :: else fi;
     v = 0; c++
  :: else -> break
  od; c = 0
}

active proctype publisher() {
  byte r, w, s, c, v; bit seen0, sent;
  {
    do
    :: gen < NG ->
       w = 0;
       do :: w < NW && word[w] == 0 -> w++ :: w == NW -> break
          :: r0dead && !seen0 -> clear(0); seen0 = 1; w = 0 od;    /* the block is free with its last hold */
       assert(lease[0] == 0 && lease[1] == 0);                      /* I5 */
       gen++; r = 0;
       do
       :: r < 2 ->
          if
          :: r == 0 && seen0 -> skip
          :: else ->
             w = 0;
             do :: w < NW && word[w] != 0 -> w++ :: w < NW && word[w] == 0 -> break :: w == NW -> w = 0; 
                if :: r0dead && !seen0 -> clear(0); seen0 = 1 :: else fi od;
             serial++; s = STAMP;
             rcv[w] = r;
             word[w] = OFFERED(s);
             if :: d[r] ! w, s, gen -> sent = 1 :: sent = 0 fi;     /* it arrives or not ... */
             if :: d_step { if :: word[w] == OFFERED(s) -> word[w] = 0 :: else fi }   /* ... and is given up, */
                :: sent -> skip                                     /* or is known to have arrived */
             fi;
             sent = 0
          fi;
          r++
       :: else -> break
       od; r = 0
    :: r0dead && !seen0 -> clear(0); seen0 = 1
    :: gen == NG && !pfin -> pfin = 1
    od
  } unless { kp -> pdead = 1 }
}

proctype receiver(byte r) {
  byte w, s, g, c, v; bit own, other;
  {
    do
    :: d[r] ? w, s, g ->
#ifndef GENERATION
       if :: rcv[w] != r -> g = 0 :: else fi;
#endif
       d_step { if :: g != 0 && word[w] == OFFERED(s) -> word[w] = HELD(s) :: else -> g = 0 fi };
       if
       :: g != 0 ->
          assert(rcv[w] == r);                                      /* the hold is its own */
          lease[r] = g; held[r] = w + 1;
          assert(g == gen);
          lease[r] = 0; held[r] = 0;
          d_step { if :: word[w] == HELD(s) -> word[w] = 0 :: else fi }
       :: else
       fi; w = 0; s = 0; g = 0
    :: r == 1 && pdead && empty(d[1]) && !own -> clear(1); own = 1     /* R16: what it never took */
    :: r == 1 && pdead && r0dead && !other -> clear(0); other = 1       /* and what the dead held of the dead */
    :: r == 0 && pdead && empty(d[0]) && held[0] == 0 -> clear(0); break
    od
  } unless { r == 0 && k0 -> atomic { r0dead = 1; lease[0] = 0 } }
}

active proctype fates() { if :: kp = 1 :: skip fi; if :: k0 = 1 :: skip fi }
init { atomic { run receiver(0); run receiver(1) } }
active proctype monitor() {
  byte i;
  timeout;
  i = 0;
  do :: i < NW -> assert(word[i] == 0); i++ :: else -> break od;
  assert(pdead || pfin)
}
