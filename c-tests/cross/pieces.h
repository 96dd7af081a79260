/* How the pieces of code call each other: with a table of addresses, the first of which is called next. */
#ifndef PIECES_H
#define PIECES_H

typedef union piece piece;
union piece {
  long (*call)(const piece *next);
};

#endif
