/* Functions of another compiler, whose sleds stand in the same table of sites. Compiled twice, with and without landing
 * pads at function entries; NAME makes the names differ.
 */
#include <stdarg.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(name) JOIN(PREFIX, name)
#define APART __attribute__((noinline))

APART long NAME(six)(long a, long b, long c, long d, long e, long f)
{
    __asm__ volatile("");
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f;
}

/* Takes `count` pairs of an int and a double. */
APART double NAME(variadic)(int count, ...)
{
    va_list list;
    double sum = 0;

    va_start(list, count);
    for (int i = 0; i < count; i++) {
        sum = sum * 3 + va_arg(list, int);
        sum = sum * 3 + va_arg(list, double);
    }
    va_end(list);
    return sum;
}

struct large {
    long words[7];
};

APART struct large NAME(large)(long first, struct large other)
{
    for (int i = 0; i < 7; i++)
        other.words[i] += first++;
    return other;
}

APART long double NAME(extended)(long double a, int b)
{
    __asm__ volatile("");
    return a * 3 + b;
}

#if defined(__GNUC__) && !defined(__clang__)
/* A nested function finds its caller's variables by a pointer in a register that carries no argument. */
APART long NAME(nesting)(long n)
{
    long sum = 1000;
    APART long nested(long m)
    {
        __asm__ volatile("");
        sum += m;
        return m > 0 ? nested(m - 1) + 1 : sum;
    }

    return nested(n) + sum;
}
#else
APART long NAME(nesting)(long n)
{
    __asm__ volatile("");
    return n ? NAME(nesting)(n - 1) + n : 0;
}
#endif

/* Calls all of the above, with results that depend on every argument. */
double NAME(all)(long n)
{
    struct large large = { { n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6 } };
    double sum = NAME(six)(n, n + 1, n + 2, n + 3, n + 4, n + 5);

    sum += NAME(variadic)(5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5);
    large = NAME(large)(n, large);
    for (int i = 0; i < 7; i++)
        sum = sum * 2 + large.words[i];
    sum += NAME(extended)(1.25L, n);
    return sum + NAME(nesting)(n);
}
