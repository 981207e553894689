// The vectorised CPU kernels of this folder: one table per element type, compiled once per instruction set from the
// x_kernel.h bodies and picked at run time. A kernel works on a range of rows or elements in the calling thread;
// threads are the caller's affair. (Of the same bodies: device_kernels.h.) No torch here: the units of wide instruction
// sets include nothing but this and their bodies.
#pragma once
#include <cstdint>
#include <type_traits>

namespace colossal::ops {

struct Bf16 {
  uint16_t bits;
};
struct Half {  ///< IEEE binary16
  uint16_t bits;
};

/// The type a kernel computes in for elements of type T.
template <class T>
using WideOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Rows [begin, end) of matrices with `columns` columns; null pointers mean absent.
template <class T>
struct NormForward {
  using W = WideOf<T>;
  int64_t columns;
  const T *x, *weight, *bias;  ///< [rows, columns], [columns] twice
  T* y;                        ///< [rows, columns]: the result
  W *mean, *scale;             ///< [rows]; no mean: RMSNorm
  W epsilon;
  W offset;  ///< added to each weight
};

template <class T>
struct NormBackward {
  using W = WideOf<T>;
  int64_t columns;
  const T *dy, *x, *weight;
  const W *mean, *scale;
  T* dx;
  W offset;
};

template <class T>
struct GatedRows {  ///< gate and up (or their gradients) as rows of `columns` with their own distances
  int64_t columns, gate_stride, up_stride;
  T *gate, *up;
};

/// The element type of a buffer that may be narrower than those beside it. None: it is not.
enum class Narrow { None, Bf16, Half };

/// Random words, one an element: on a CPU drawn before, on other devices drawn where they are needed.
struct RandomWords {
  bool wanted;
  const uint32_t* drawn;  ///< of a CPU
  uint64_t seed, first;   ///< elsewhere: element i has the word of logical index first + i, see random.h
};

/// Flat buffers that an update rule steps; null pointers mean absent.
template <class T>
struct UpdateBuffers {
  T* values;
  T* out;  ///< receives the new values: mostly `values`
  T* states[2];
  const void* gradients;  ///< of type T, or as gradient_type says (T = float)
  Narrow gradient_type;
  void* copy;  ///< receives the values rounded to copy_type (T = float or Bf16)
  Narrow copy_type;
  RandomWords words;  ///< wanted (T = Bf16): values and the last state are rounded by chance, else to nearest
  WideOf<T> gradient_scale;
};

template <class W>
struct SgdFactors {
  W penalty;  ///< of the values, added to the gradient
  W momentum, intake;
  W from_gradient, from_momentum;  ///< the direction: (0, 1), or (1, momentum) of Nesterov
  W step_size;
};

template <class W>
struct AdamFactors {
  W penalty, decay;  ///< of the values: added to the gradient; factor before the step
  W mix1;            ///< 1 - beta1
  W beta2, mix2;     ///< beta2, 1 - beta2
  W inverse_correction2_root, epsilon, step_size;
};

template <class W>
struct LionFactors {
  W decay;                     ///< factor of the values before the step
  W direction_mix, state_mix;  ///< 1 - beta1, 1 - beta2
  W step_size;
};

/// A matrix times a factor a row and a column; `from` may be `to`.
template <class T>
struct ScaledMatrix {
  using W = WideOf<T>;
  int64_t columns, from_stride, to_stride;
  const void* from;  ///< of type T, or as from_type says (T = float)
  Narrow from_type;
  const W *row_factors, *column_factors;
  T* to;
};

constexpr int64_t kPagedRows = 24;    ///< pairs of a query and a head that read the keys of a page together
constexpr int64_t kPagedPart = 1024;  ///< keys of a sequence, counted from its first, that make one partial result

constexpr int64_t kCodeBlock = 256;  ///< numbers in 8 bits that share a scale

/// What a kind of 8-bit codes stands for, and for each run of floats that share their upper 16 bits the code of its
/// lowest one; see block_codes.h.
struct CodeTable {
  const float* values;  ///< of codes
  /// One entry for each run from first_run to last_run: the magnitude's code << 16 | the lower 16 bits of the border
  /// above it, or 0xFFFF if that border is in another run
  const int32_t* runs;
  int32_t first_run, last_run;  ///< of the magnitudes from "all codes 0" to 1
  int32_t zero;                 ///< the code of 0
  int32_t sign_mask;            ///< -1 if codes have signs, else 0
};

/// Numbers in 8 bits: codes [n], and a scale for each kCodeBlock of them.
struct CodedNumbers {
  CodeTable table;
  uint8_t* codes;
  float* scales;
};

/// Rows of [rows, heads, head_size], the first `rotated` features of each turned by the angles of its position, the
/// others copied; `sign` -1 turns back.
template <class T>
struct RotaryRows {
  using W = WideOf<T>;
  int64_t heads, head_size, rotated, x_row_stride, x_head_stride;
  const T* x;
  T* y;  ///< contiguous
  const int64_t* positions;
  const W* cos_sin;           ///< of a CPU: [positions, 2, rotated / 2]
  const double* frequencies;  ///< elsewhere: [rotated / 2], of which angles are made where they are needed
  W factor;                   ///< elsewhere: of cosines and sines
  W sign;
};

/// Rows of logits, one a token, whose place the softmax takes and then the gradient; see cross_entropy.cpp. T: double
/// or float.
template <class T>
struct SoftmaxRows {
  int64_t columns, valid, stride;  ///< of the logits; those from `valid` on are padding
  T* logits;
  const int64_t* labels;  ///< [rows]: numbers of words
  int64_t ignored;        ///< the label of rows that do not count
  int64_t first;          ///< the word of column 0
  T* largest;             ///< [rows]: of the valid logits; 0 of rows that do not count. Devices' softmax leaves it
  T* sums;                ///< [rows]: of e^(logit - largest); 0 of rows that do not count
  T* targets;             ///< [rows]: logit - largest of the label, 0 where it is none of the columns
};

/// Rows of a shard of a logical matrix, whose elements are dropped by their word of `seed`; see random.h.
template <class T>
struct DroppedRows {
  int64_t columns, first_row, run, stride;  ///< of LogicalRows
  int64_t first_column, logical_columns;
  uint64_t seed;
  uint32_t threshold;  ///< words below it drop
  WideOf<T> scale;     ///< of what is kept
  const T* x;
  T* y;
};

/// A tensor [batch, heads, positions, size] whose last dimension is dense.
template <class T>
struct HeadView {
  T* data;
  int64_t batch, head, position;  ///< strides, elements
};

/// Attention of batch * heads heads; see attention.h. Forward writes out and log_sums, backward reads them.
template <class T>
struct AttentionTask {
  using W = WideOf<T>;
  int64_t batch, heads, kv_heads, queries, keys, size;
  /// What a query may see: the keys [from, to), which may lie anywhere. Row b of the batch has its own [queries] from
  /// b * mask_stride on, which is 0 where all rows have the same.
  const int64_t *from, *to, *position;  ///< position: of the query itself, counted from the first key
  int64_t mask_stride;
  const int64_t* key_position;  ///< [keys] or null: that of a key, counted from the first; null: key j is at j
  /// [batch, keys] or null: within its range a query sees only keys with its own number, that at its position or, where
  /// given, of query_documents [batch, queries]
  const int64_t *documents, *query_documents;
  const double* alibi;  ///< [heads] or null: added to a score is alibi[head] * (key's position - position)
  W scale, soft_cap;    ///< soft_cap 0: none
  HeadView<const T> q, k, v;
  HeadView<T> out;
  W* log_sums;  ///< [batch, heads, queries]: logarithm of the sum of exponentials of the scores
  HeadView<const T> dout;
  HeadView<T> dq, dk, dv;
};

/// In what pages hold keys and values: numbers of the model's dtype, or codes of 8 bits with a scale a token and head.
enum class PageCodes { None, Int8, Fp8 };

/// Keys and values in pages, and how queries meet them; see paged_attention.h.
template <class T>
struct PagedTask {
  using W = WideOf<T>;
  int64_t heads, kv_heads, size, padded;  ///< padded: row length of values
  int64_t page;                           ///< tokens of a page
  PageCodes codes;
  const void *k, *v;                 ///< [pages, kv_heads, size, page], [pages, kv_heads, page, padded]: T or codes
  const float *k_scales, *v_scales;  ///< of codes: [pages, kv_heads, page]
  const T* q;
  int64_t q_token, q_head;  ///< strides, elements
  T* out;                   ///< [tokens, heads, size], or null: `wide` and `log_sums`
  W *wide, *log_sums;       ///< [tokens, heads, size], [tokens, heads]
  const double* alibi;      ///< [heads] or null
  W scale, soft_cap;
  int64_t reach;  ///< positions that a query sees, its own the last of them
};
/// Neighbours of one sequence.
struct PagedQueries {
  const int32_t* table;               ///< pages of the sequence
  int64_t first_page, page_stride;    ///< which of the sequence's pages these are
  int64_t first, count, position;     ///< of q and out: the first token, how many; where the first one stands
  int64_t first_part = 0, parts = 1;  ///< of kPagedPart keys, those that hold all keys that the queries see
};

template <class T>
struct Kernels {
  using W = WideOf<T>;
  void (*norm_forward)(const NormForward<T>&, int64_t begin, int64_t end);
  /// Adds this range's share to dweight and dbias (null: none), each [columns].
  void (*norm_backward)(const NormBackward<T>&, W* dweight, W* dbias, int64_t begin, int64_t end);
  void (*gelu_forward)(const T* x, T* y, int64_t n);
  void (*gelu_backward)(const T* dy, const T* x, T* dx, int64_t n);
  void (*swiglu_forward)(const GatedRows<const T>&, T* y, int64_t begin, int64_t end);
  void (*swiglu_backward)(const T* dy, const GatedRows<const T>&, const GatedRows<T>& out, int64_t begin, int64_t end);
  void (*geglu_forward)(const GatedRows<const T>&, T* y, int64_t begin, int64_t end);
  void (*geglu_backward)(const T* dy, const GatedRows<const T>&, const GatedRows<T>& out, int64_t begin, int64_t end);
  void (*rotary)(const RotaryRows<T>&, int64_t begin, int64_t end);
  /// out[c] += sum over rows [begin, end) of x[r, c].
  void (*column_sums)(const T* x, int64_t columns, int64_t begin, int64_t end, W* out);
  double (*sum_of_squares)(const T* x, int64_t n);
  /// Softmax kernels, for double and float only. The first writes `largest`. The second reads it, writes `sums` and
  /// `targets`, and replaces the logits by e^(logit - largest). The third reads `sums` and makes of that the softmax
  /// minus the one-hot of the label.
  void (*softmax_largest)(const SoftmaxRows<T>&, int64_t begin, int64_t end);
  void (*softmax_exponentials)(const SoftmaxRows<T>&, int64_t begin, int64_t end);
  void (*softmax_gradient)(const SoftmaxRows<T>&, int64_t begin, int64_t end);
  /// All three, row by row, the last one if it is wanted.
  void (*softmax)(const SoftmaxRows<T>&, bool gradient, int64_t begin, int64_t end);
  /// Sums squares of fp16 elements, for any T.
  double (*sum_of_squares_half)(const Half* x, int64_t n);
  /// Steps of elements [0, n); see update.h. States: momentum or none; first and second moment; momentum.
  void (*sgd)(const UpdateBuffers<T>&, const SgdFactors<W>&, int64_t n);
  void (*adam)(const UpdateBuffers<T>&, const AdamFactors<W>&, int64_t n);
  void (*lion)(const UpdateBuffers<T>&, const LionFactors<W>&, int64_t n);
  /// Random words of logical indices [first, first + count), see random.h. The same in all tables.
  void (*random_words)(uint64_t seed, uint64_t first, int64_t count, uint32_t* out);
  /// Elements of scratch memory that one thread needs.
  int64_t (*attention_scratch)(const AttentionTask<T>&);
  /// Heads [begin, end) of batch * heads.
  void (*attention_forward)(const AttentionTask<T>&, int64_t begin, int64_t end, W* scratch);
  /// Key-value heads [begin, end) of batch * kv_heads, with all query heads that read them.
  void (*attention_backward)(const AttentionTask<T>&, int64_t begin, int64_t end, W* scratch);
  /// Queries of at most kPagedRows / (heads / kv_heads), at least one, and one key-value head, with all query heads
  /// that read it. `scratch` has paged_scratch() elements.
  void (*paged_attention)(const PagedTask<T>&, const PagedQueries&, int64_t kv_head, W* scratch);
  int64_t (*paged_scratch)(const PagedTask<T>&);
  /// The same, bit for bit, in pieces: what a part of the keys makes, number first_part + `part`, is left in `state`,
  /// of paged_state() elements; then the states of all parts, one behind another, become the result.
  void (*paged_part)(const PagedTask<T>&, const PagedQueries&, int64_t kv_head, int64_t part, W* state, W* scratch);
  void (*paged_merge)(const PagedTask<T>&, const PagedQueries&, int64_t kv_head, W* states);
  int64_t (*paged_state)(const PagedTask<T>&);
  /// Gradients flow into the state, (gradient - state) * mix; the new values are what is left of them, gradient -
  /// state.
  void (*average)(const UpdateBuffers<T>&, W mix, int64_t n);
  /// row_sums[i] += sum over j of matrix[i, j]^2, column_sums[j] += sum over i of the same, for rows [begin, end) that
  /// lie `stride` apart.
  void (*square_sums)(const T* matrix, int64_t stride, int64_t columns, int64_t begin, int64_t end, double* row_sums,
                      double* column_sums);
  /// Adds square sums of fp16 elements, for any T.
  void (*square_sums_half)(const Half* matrix, int64_t stride, int64_t columns, int64_t begin, int64_t end,
                           double* row_sums, double* column_sums);
  /// Rows [begin, end); the sum of the squares of what is written.
  double (*scale_matrix)(const ScaledMatrix<T>&, int64_t begin, int64_t end);
  /// A block of at most kCodeBlock values; returns its scale. The same in all tables, as decode_block.
  float (*encode_block)(const CodeTable&, const float* values, int64_t count, uint8_t* codes);
  void (*decode_block)(const CodeTable&, const uint8_t* codes, float scale, int64_t count, float* values);
};

/// The table for the calling thread's instruction_set(). T: double, float or Bf16.
template <class T>
const Kernels<T>& kernels();

/// The tables themselves, one function a unit.
template <class T>
const Kernels<T>& portable_kernels();
template <class T>
const Kernels<T>& avx2_kernels();
template <class T>
const Kernels<T>& avx512_kernels();

}  // namespace colossal::ops
