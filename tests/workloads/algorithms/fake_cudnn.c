/* A stand-in for libcudnn, on host memory, that takes nothing it should not be given.

   Its functions have the arguments of cuDNN's, its descriptors know what they are, and its
   convolutions are real ones, so that a test sees whether the binding passes the right things in the
   right order. FAKE_CUDNN_VERSION is the version it claims, and whose status numbers it returns. */

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLE = 11, TENSOR = 22, FILTER = 33, CONVOLUTION = 44 };
enum { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

typedef struct {
    int kind, format, type;
    int sizes[4]; /* n c h w; of a filter k c r s */
} Tensor;

typedef struct {
    int kind, pad[2], stride[2], dilation[2], mode, type, groups, math;
} Convolution;

typedef struct {
    int kind;
    void *stream;
    int stream_is_set;
} Handle;

typedef struct {
    int algo;
    int status;
    float time;
    size_t memory;
    int determinism;
    int mathType;
    int reserved[3];
} Perf;

static const size_t ENORMOUS = (size_t)1 << 50;

size_t cudnnGetVersion(void) {
    const char *said = getenv("FAKE_CUDNN_VERSION");
    return said ? (size_t)atol(said) : 92000;
}

static int nine(void) { return cudnnGetVersion() >= 90000; }
static int bad_param(void) { return nine() ? 2000 : 3; }
static int not_supported(void) { return nine() ? 3002 : 9; }
static int alloc_failed(void) { return nine() ? 4003 : 2; }

const char *cudnnGetErrorString(int status) {
    if (status == bad_param()) return "FAKE_BAD_PARAM";
    if (status == not_supported()) return "FAKE_NOT_SUPPORTED";
    if (status == alloc_failed()) return "FAKE_ALLOC_FAILED";
    return status ? "FAKE_UNKNOWN" : "FAKE_SUCCESS";
}

int cudnnCreate(Handle **made) {
    *made = calloc(1, sizeof(Handle));
    (*made)->kind = HANDLE;
    return 0;
}

int cudnnSetStream(Handle *handle, void *stream) {
    if (handle->kind != HANDLE) return bad_param();
    handle->stream = stream;
    handle->stream_is_set = 1;
    return 0;
}

static int create(void **made, size_t size, int kind) {
    *made = calloc(1, size);
    *(int *)*made = kind;
    return 0;
}

static int destroy(void *one, int kind) {
    if (*(int *)one != kind) return bad_param();
    *(int *)one = 0;
    free(one);
    return 0;
}

int cudnnCreateTensorDescriptor(void **made) { return create(made, sizeof(Tensor), TENSOR); }
int cudnnCreateFilterDescriptor(void **made) { return create(made, sizeof(Tensor), FILTER); }
int cudnnCreateConvolutionDescriptor(void **made) {
    return create(made, sizeof(Convolution), CONVOLUTION);
}
int cudnnDestroyTensorDescriptor(void *one) { return destroy(one, TENSOR); }
int cudnnDestroyFilterDescriptor(void *one) { return destroy(one, FILTER); }
int cudnnDestroyConvolutionDescriptor(void *one) { return destroy(one, CONVOLUTION); }

static int set(Tensor *t, int kind, int format, int type, int a, int b, int c, int d) {
    if (t->kind != kind || type != 0 || format < 0 || format > 1) return bad_param();
    int sizes[4] = {a, b, c, d};
    memcpy(t->sizes, sizes, sizeof sizes);
    t->format = format;
    t->type = type;
    return 0;
}

int cudnnSetTensor4dDescriptor(Tensor *t, int format, int type, int n, int c, int h, int w) {
    return set(t, TENSOR, format, type, n, c, h, w);
}

int cudnnSetFilter4dDescriptor(Tensor *t, int type, int format, int k, int c, int h, int w) {
    return set(t, FILTER, format, type, k, c, h, w);
}

int cudnnSetConvolution2dDescriptor(Convolution *v, int pad_h, int pad_w, int u, int s, int dilation_h,
                                    int dilation_w, int mode, int type) {
    if (v->kind != CONVOLUTION || mode != 1 || type != 0) return bad_param();
    v->pad[0] = pad_h, v->pad[1] = pad_w;
    v->stride[0] = u, v->stride[1] = s;
    v->dilation[0] = dilation_h, v->dilation[1] = dilation_w;
    v->groups = 1;
    return 0;
}

int cudnnSetConvolutionGroupCount(Convolution *v, int groups) {
    if (v->kind != CONVOLUTION || groups < 1) return bad_param();
    v->groups = groups;
    return 0;
}

int cudnnSetConvolutionMathType(Convolution *v, int math) {
    int most = cudnnGetVersion() >= 8000 ? 3 : 2;
    if (v->kind != CONVOLUTION || math < 0 || math > most) return bad_param();
    v->math = math;
    return 0;
}

int cudnnGetConvolution2dForwardOutputDim(Convolution *v, Tensor *x, Tensor *w, int *n, int *c, int *h,
                                          int *q) {
    if (v->kind != CONVOLUTION || x->kind != TENSOR || w->kind != FILTER) return bad_param();
    if (x->sizes[1] != w->sizes[1] * v->groups) return bad_param();
    int out[2];
    for (int i = 0; i < 2; i++) {
        int reach = v->dilation[i] * (w->sizes[2 + i] - 1) + 1;
        out[i] = (x->sizes[2 + i] + 2 * v->pad[i] - reach) / v->stride[i] + 1;
    }
    *n = x->sizes[0], *c = w->sizes[0], *h = out[0], *q = out[1];
    return 0;
}

/* Behaviours by the algorithm's place among those of its direction, see the tests. */
static int find(const int *places, int algo) {
    for (int i = 0; i < 8; i++)
        if (places[i] == algo) return i;
    return -1;
}
enum { PLAIN, PRECOMP, WRONG, TOO_BIG, ABSENT, SILENT, LAZY, OTHER };
/*                                     plain precomp wrong big absent silent lazy other */
static const int PLACES[3][8] = {{0, 1, 5, 4, 3, 6, 7, 2},
                                 {0, 1, 3, 2, 4, -2, 5, -2},
                                 {0, 1, 6, 2, 4, 3, 5, -2}};

static int size_of(int direction, int algo, size_t *size) {
    int behaviour = find(PLACES[direction], algo);
    if (behaviour < 0 || behaviour == ABSENT) return not_supported();
    *size = behaviour == PRECOMP ? 4096 : behaviour == TOO_BIG ? ENORMOUS : 0;
    return 0;
}

static int right_kinds(int direction, Tensor *a, Tensor *b, Convolution *v, Tensor *out) {
    static const int kinds[3][3] = {
        {TENSOR, FILTER, TENSOR}, {FILTER, TENSOR, TENSOR}, {TENSOR, TENSOR, FILTER}};
    return a->kind == kinds[direction][0] && b->kind == kinds[direction][1] &&
           v->kind == CONVOLUTION && out->kind == kinds[direction][2];
}

static int workspace(int direction, Handle *handle, Tensor *a, Tensor *b, Convolution *v, Tensor *out,
                     int algo, size_t *size) {
    if (handle->kind != HANDLE || !right_kinds(direction, a, b, v, out)) return bad_param();
    return size_of(direction, algo, size);
}

static float *at(Tensor *t, float *base, int a, int b, int c, int d) {
    int *z = t->sizes;
    return t->format ? base + (((ptrdiff_t)a * z[2] + c) * z[3] + d) * z[1] + b
                     : base + (((ptrdiff_t)a * z[1] + b) * z[2] + c) * z[3] + d;
}

/* All three directions are one loop: for each tap y += x w, x += w y, or w += x y. */
static void compute(int direction, Convolution *v, Tensor *xd, float *x, Tensor *wd, float *w,
                    Tensor *yd, float *y, int last) {
    Tensor *out = direction == FORWARD ? yd : direction == BACKWARD_DATA ? xd : wd;
    float *base = direction == FORWARD ? y : direction == BACKWARD_DATA ? x : w;
    int *o = out->sizes;
    memset(base, 0, sizeof(float) * o[0] * o[1] * o[2] * o[3]);
    int per = wd->sizes[0] / v->groups;
    for (int n = 0; n < yd->sizes[0]; n++)
        for (int k = 0; k < yd->sizes[1]; k++)
            for (int p = 0; p < yd->sizes[2]; p++)
                for (int q = 0; q < yd->sizes[3]; q++)
                    for (int c = 0; c < wd->sizes[1]; c++)
                        for (int r = 0; r < wd->sizes[2]; r++)
                            for (int s = 0; s < wd->sizes[3] - last; s++) {
                                int h = p * v->stride[0] - v->pad[0] + r * v->dilation[0];
                                int u = q * v->stride[1] - v->pad[1] + s * v->dilation[1];
                                if (h < 0 || u < 0 || h >= xd->sizes[2] || u >= xd->sizes[3])
                                    continue;
                                float *i = at(xd, x, n, k / per * wd->sizes[1] + c, h, u);
                                float *f = at(wd, w, k, c, r, s);
                                float *e = at(yd, y, n, k, p, q);
                                if (direction == FORWARD) *e += *i * *f;
                                if (direction == BACKWARD_DATA) *i += *f * *e;
                                if (direction == BACKWARD_FILTER) *f += *i * *e;
                            }
}

static int run(int direction, Handle *handle, const float *alpha, Tensor *ad, float *a, Tensor *bd,
               float *b, Convolution *v, int algo, void *room, size_t size, const float *beta,
               Tensor *outd, float *out) {
    size_t wanted = 0;
    if (handle->kind != HANDLE || !handle->stream_is_set || *alpha != 1 || *beta != 0 ||
        !right_kinds(direction, ad, bd, v, outd))
        return bad_param();
    int status = size_of(direction, algo, &wanted);
    if (status) return status;
    if (size < wanted || (wanted && !room)) return bad_param();
    if (wanted) memset(room, 1, wanted); /* all of it may be written */
    int behaviour = find(PLACES[direction], algo);
    if (behaviour == SILENT) return 0; /* claims success, writes nothing */
    if (behaviour == LAZY) return not_supported();
    int last = behaviour == WRONG; /* leaves out the last column of taps */
    if (direction == FORWARD) compute(direction, v, ad, a, bd, b, outd, out, last);
    if (direction == BACKWARD_DATA) compute(direction, v, outd, out, ad, a, bd, b, last);
    if (direction == BACKWARD_FILTER) compute(direction, v, ad, a, outd, out, bd, b, last);
    return 0;
}

static int search(int direction, Handle *handle, Tensor *ad, float *a, Tensor *bd, float *b,
                  Convolution *v, Tensor *outd, float *out, int requested, int *returned,
                  Perf *results, void *room, size_t size) {
    if (handle->kind != HANDLE || !right_kinds(direction, ad, bd, v, outd)) return bad_param();
    /* The search leaves a right result, so an algorithm that writes nothing would seem right. */
    if (direction == FORWARD) compute(direction, v, ad, a, bd, b, outd, out, 0);
    if (direction == BACKWARD_DATA) compute(direction, v, outd, out, ad, a, bd, b, 0);
    if (direction == BACKWARD_FILTER) compute(direction, v, ad, a, outd, out, bd, b, 0);
    int math[2] = {v->math, 0}, tried = v->math ? 2 : 1, count = 0;
    for (int m = 0; m < tried; m++)
        for (int algo = 7; algo >= 0; algo--) {
            int behaviour = find(PLACES[direction], algo);
            if (behaviour < 0 || behaviour == OTHER) continue; /* of OTHER it says nothing */
            size_t wanted = 0;
            int status = size_of(direction, algo, &wanted);
            if (!status && (wanted > size || (wanted && !room))) status = alloc_failed();
            if (count == requested) return bad_param();
            Perf one = {algo, status, status ? -1.0f : 0.25f + m, wanted, behaviour != PLAIN, math[m],
                        {0, 0, 0}};
            results[count++] = one;
        }
    *returned = count;
    return 0;
}

#define DIRECTION(NAME, NUMBER)                                                                      \
    int cudnnGetConvolution##NAME##AlgorithmMaxCount(Handle *handle, int *count) {                   \
        *count = 16;                                                                                 \
        return handle->kind == HANDLE ? 0 : bad_param();                                             \
    }                                                                                                \
    int cudnnGetConvolution##NAME##WorkspaceSize(Handle *handle, Tensor *a, Tensor *b,               \
                                                 Convolution *v, Tensor *out, int algo,              \
                                                 size_t *size) {                                     \
        return workspace(NUMBER, handle, a, b, v, out, algo, size);                                  \
    }                                                                                                \
    int cudnnFindConvolution##NAME##AlgorithmEx(                                                     \
        Handle *handle, Tensor *ad, void *a, Tensor *bd, void *b, Convolution *v,                    \
        Tensor *outd, void *out, int requested, int *returned, Perf *results, void *room,            \
        size_t size) {                                                                               \
        if (!a || !b || !out) return bad_param();                                                    \
        return search(NUMBER, handle, ad, a, bd, b, v, outd, out, requested, returned, results,      \
                      room, size);                                                                   \
    }                                                                                                \
    int cudnnConvolution##NAME(Handle *handle, const void *alpha, Tensor *ad, void *a, Tensor *bd,   \
                               void *b, Convolution *v, int algo, void *room, size_t size,           \
                               const void *beta, Tensor *outd, void *out) {                          \
        return run(NUMBER, handle, alpha, ad, a, bd, b, v, algo, room, size, beta, outd, out);       \
    }

DIRECTION(Forward, FORWARD)
DIRECTION(BackwardData, BACKWARD_DATA)
DIRECTION(BackwardFilter, BACKWARD_FILTER)
