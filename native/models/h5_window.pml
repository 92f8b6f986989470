/* H5  A memory window: bound by its owner, used through cached translations, withdrawn by a peer that sends with invalidate.
 *
 * The record is a state word and two fields that belong together (the place). The owner binds place 1, withdraws it or hears that a peer has,
 * and binds place 2 with the same key. The user translates the key, uses the copy, and uses it again later. The invalidator may be killed or
 * stopped at any time, also between looking at the word and changing it.
 *
 *   bind        word := 0; fields; word := LIVE(a generation that is never used twice)
 *   translate   word; fields; word again: changed: no such window. Each later use compares the word with that of the copy
 *   invalidate  word; CAS word -> 0; only then the completion is committed
 *
 * Checked: whoever uses a copy uses the place that is bound (`bound` is a ghost); whoever sees the completion finds the window out of use;
 * a late invalidator never withdraws the next binding; an owner that binds last has a live window at the end.
 *
 * Switches, each takes one rule away:
 *   NOGEN        LIVE says the key only
 *   NOCLOSE      the owner writes the fields of a window that is live
 *   NORECHECK    the translator does not read the word again
 *   COMMITFIRST  the completion is committed before the word is changed
 *   BLIND        the invalidator stores 0 without comparing
 */
#ifdef NOGEN
#define LIVE(n) 1
#else
#define LIVE(n) (n)
#endif
byte word, f1, f2, bound;
bit completed, kill, rebound, withdrawn;

proctype owner() {
  f1 = 1; f2 = 1;
  d_step { word = LIVE(1); bound = 1 };
  if
  :: completed -> assert(word == 0)
#ifdef NOCLOSE
  :: skip
#else
  :: d_step { word = 0; bound = 0 }                                            /* LOCAL_INV, or bound anew */
#endif
  fi;
  f1 = 2; f2 = 2;
  d_step { word = LIVE(2); bound = 2; rebound = 1 };
}

proctype user() {
  byte s, c1, c2;
  bit copied;
  do
  :: copied == 0 && word != 0 ->
     s = word;
     if
     :: s == 0
     :: else ->
        c1 = f1; c2 = f2;
#ifndef NORECHECK
        d_step { if :: word == s -> copied = 1; assert(c1 == c2 && c1 == bound) :: else fi }
#else
        copied = 1; assert(c1 == c2)
#endif
     fi
  :: copied ->
     d_step { if :: word == s -> assert(c1 == c2 && c1 == bound) :: else -> copied = 0 fi }
  :: rebound -> break
  od
}

proctype invalidator() {
  byte s, seen;
  bit done;
  {
    d_step { s = word; seen = bound };
    if
    :: s == 0
    :: else ->
#ifdef COMMITFIRST
       completed = 1;
#endif
#ifdef BLIND
       d_step { assert(bound == seen || bound == 0); word = 0; done = 1; withdrawn = (bound == 2); bound = 0 };
#else
       d_step {
         if
         :: word == s -> assert(bound == seen); word = 0; done = 1; withdrawn = (bound == 2); bound = 0
         :: else
         fi
       };
#endif
#ifndef COMMITFIRST
       if :: done -> completed = 1 :: else fi
#endif
    fi;
    false
  } unless { kill }
}

init {
  atomic { run owner(); run user(); run invalidator() };
  if :: kill = 1 :: skip fi;
  timeout;
  assert(rebound && (withdrawn || (word == LIVE(2) && f1 == 2 && f2 == 2)))
}
