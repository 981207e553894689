// Tables of the vectorised CPU kernels of this folder. Each table holds the kernels of one element type and instruction
// set. The bodies (x_kernel.h) are compiled once per instruction set, and a table is picked at run time. A kernel
// processes a range of rows or elements in the calling thread; the caller distributes the work over threads.
// ops/device/kernels.h declares the accelerators' kernels, which are compiled from the same bodies.
// The translation units of wide instruction sets include this header and their bodies only, so it must not include
// torch.
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

/// The type in which a kernel computes for elements of type T: double for double, float for all others.
template <class T>
using WideOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Arguments of the forward pass of LayerNorm and RMSNorm for matrices with `columns` columns. The kernel takes rows
/// [begin, end) of them. A null pointer means that the tensor is absent.
template <class T>
struct NormForward {
  using W = WideOf<T>;
  int64_t columns;
  const T *x, *weight, *bias;  ///< inputs: [rows, columns], [columns], [columns]
  T* y;                        ///< [rows, columns]: the result
  W *mean, *scale;             ///< [rows]: written for backward; a null `mean` selects RMSNorm
  W epsilon;
  W offset;  ///< number added to each weight
};

/// Arguments of the backward pass of the same norms. A null `mean` selects RMSNorm; a null `dx` skips that gradient.
template <class T>
struct NormBackward {
  using W = WideOf<T>;
  int64_t columns;
  const T *dy, *x, *weight;
  const W *mean, *scale;
  T* dx;
  W offset;
};

/// Rows of `columns` elements from which a number of each column is subtracted, for GroupNorm.
template <class T>
struct CentredRows {
  using W = WideOf<T>;
  int64_t columns;
  const T *x, *dy;         ///< [rows, columns]; a null `dy` means that it is absent
  const W* mean;           ///< [columns]
  const W *scale, *shift;  ///< [columns]: numbers of centred_affine
  const W* factor;         ///< [columns]: factor of dy
  T* y;                    ///< [rows, columns]: the result
};

/// Gate and up, or their gradients, as rows of `columns` elements. Each of the two has its own row stride, in elements.
template <class T>
struct GatedRows {
  int64_t columns, gate_stride, up_stride;
  T *gate, *up;
};

/// Element type of a buffer that may be narrower than the other buffers of a task. `None` means their type.
enum class Narrow { None, Bf16, Half };

/// One random word per element. CPU kernels read words that were drawn before; kernels of other devices draw each word
/// when they need it.
struct RandomWords {
  bool wanted;            ///< false = the kernel uses no words
  const uint32_t* drawn;  ///< words for a CPU kernel, one per element
  uint64_t seed, first;   ///< for other devices: element i gets the word of logical index first + i, see random.h
};

/// Flat buffers that an optimizer's update rule steps. A null pointer means that the buffer is absent.
template <class T>
struct UpdateBuffers {
  T* values;
  T* out;  ///< receives the new values; usually equal to `values`
  T* states[2];
  const void* gradients;  ///< elements of type T, or of gradient_type if T = float
  Narrow gradient_type;
  void* copy;  ///< receives the values rounded to copy_type (T = float or Bf16)
  Narrow copy_type;
  RandomWords words;  ///< if wanted (T = Bf16), values and the last state are rounded stochastically, else to nearest
  WideOf<T> gradient_scale;
};

template <class W>
struct SgdFactors {
  W penalty;  ///< L2 penalty: g += penalty * value
  W momentum, intake;
  W from_gradient, from_momentum;  ///< factors of gradient and momentum in the step: (0, 1); Nesterov (1, momentum)
  W step_size;
};

template <class W>
struct AdamFactors {
  W penalty, decay;  ///< L2 penalty: g += penalty * value; factor of the values before the step
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

/// A matrix that is multiplied by one factor per row and one per column. `to` may equal `from`.
template <class T>
struct ScaledMatrix {
  using W = WideOf<T>;
  int64_t columns, from_stride, to_stride;
  const void* from;  ///< elements of type T, or of from_type if T = float
  Narrow from_type;
  const W *row_factors, *column_factors;
  T* to;
};

/// Maximum number of (query, head) pairs that read a page's keys together. It does not bound a single query with all
/// heads of a key-value head
constexpr int64_t kPagedRows = 24;
/// Keys per partial result, counted from the first key in the pages that the call is given
constexpr int64_t kPagedPart = 1024;

constexpr int64_t kCodeBlock = 256;  ///< 8-bit values that share a scale

/// Lookup tables of an 8-bit code: the value of each code, and the code of each value. Encoding looks up runs; a run is
/// the set of floats that share their upper 16 bits. See ops/updates/block_codes.h.
struct CodeTable {
  const float* values;  ///< value of each code, in units of the block's scale
  /// One entry for each run from first_run to last_run: code << 16 | border. `code` is the magnitude code of the run's
  /// lowest float. `border` holds the lower 16 bits of the border above it, or 0xFFFF if that border is in another run.
  const int32_t* runs;
  int32_t first_run, last_run;  ///< first run (its magnitude codes are all 0) and last run (holds magnitude 1)
  int32_t zero;                 ///< the code of 0
  int32_t sign_mask;            ///< -1 if codes have signs, else 0
};

/// Values quantized to 8 bits: codes [n], and one scale for each kCodeBlock of them.
struct CodedNumbers {
  CodeTable table;
  uint8_t* codes;
  float* scales;
};

/// Arguments of rotary embedding for rows [rows, heads, head_size]. The kernel rotates the first `rotated` features of
/// each head by the angles of the row's position and copies the others. `sign` -1 rotates back.
template <class T>
struct RotaryRows {
  using W = WideOf<T>;
  int64_t heads, head_size, rotated, x_row_stride, x_head_stride;
  const T* x;
  T* y;  ///< contiguous
  const int64_t* positions;
  const W* cos_sin;           ///< [positions, 2, rotated / 2], for a CPU
  const double* frequencies;  ///< [rotated / 2], for other devices; the kernel computes angles from them
  W factor;                   ///< factor of cosines and sines, for other devices
  W sign;
};

/// Rows of logits, one per token. The softmax kernels overwrite the logits, first by their exponentials and then by the
/// gradient of the loss; see cross_entropy.cpp. T is double or float.
template <class T>
struct SoftmaxRows {
  int64_t columns, valid, stride;  ///< stride of the logits' rows in elements; columns from `valid` on are padding
  T* logits;
  const int64_t* labels;  ///< [rows]: label of each token, a vocabulary index
  int64_t ignored;        ///< label of rows that the loss skips
  int64_t first;          ///< vocabulary index of column 0
  T* largest;             ///< [rows]: largest valid logit; 0 for skipped rows; not written by `softmax` on devices
  T* sums;                ///< [rows]: sum of e^(logit - largest); 0 for skipped rows
  T* targets;             ///< [rows]: the label's logit - largest; 0 if the label is in no valid column
};

/// Rows of logits of some words, one row per token, for the score kernels. They compute with z = scale * logit.
template <class T>
struct ScoreRows {
  int64_t columns, valid, stride;  ///< as in SoftmaxRows
  T* logits;
  const int64_t* labels;  ///< [rows], vocabulary indices
  int64_t ignored;        ///< label of rows that count nothing
  int64_t first;          ///< vocabulary index of column 0
  T scale;                ///< 1 / temperature
  /// [rows] each, over the words seen so far: largest z; sum of e^(z - largest); z of the label; sum of
  /// e^(z - largest) (z - largest), or null if no entropy is wanted
  T *largest, *sums, *targets, *moments;
  /// [rows] each, over all words: logarithm of the sum; entropy, or null if it has no gradient; the gradients of the
  /// label's log-probability and of the entropy, where null is 0
  const T *log_sums, *entropies, *of_value, *of_entropy;
};

/// Arguments of dropout for rows of a shard of a logical matrix. The random word of `seed` at an element's logical
/// index decides if it is dropped; see random.h.
template <class T>
struct DroppedRows {
  int64_t columns, first_row, run, stride;  ///< columns; the others are the members of LogicalRows
  int64_t first_column, logical_columns;
  uint64_t seed;
  uint32_t threshold;  ///< an element whose word is below it is dropped
  WideOf<T> scale;     ///< factor of the elements that are kept
  const T* x;
  T* y;
};

/// A view of a tensor [batch, heads, positions, size]. Its last dimension is dense.
template <class T>
struct HeadView {
  T* data;
  int64_t batch, head, position;  ///< strides in elements
};

/// Arguments of attention over batch * heads heads; see ops/attention/attention.h. The forward kernel writes `out` and
/// `log_sums`; the backward kernel reads them.
template <class T>
struct AttentionTask {
  using W = WideOf<T>;
  int64_t batch, heads, kv_heads, queries, keys, size;
  /// Keys [from, to) that each query may see, and each query's position, counted from the first key. The range may be
  /// anywhere. Row b of the batch reads its own [queries] entries from b * mask_stride on; mask_stride is 0 if all rows
  /// share them.
  const int64_t *from, *to, *position;
  int64_t mask_stride;
  const int64_t* key_position;  ///< [keys] or null: position of each key, counted from the first; null: key j is at j
  /// [batch, keys] or null: document id of each key. Within its range a query sees only keys of its own document. The
  /// query's id is the id of the key at the query's position, or comes from query_documents [batch, queries] if that is
  /// not null.
  const int64_t *documents, *query_documents;
  const double* alibi;  ///< [heads] or null: slope of alibi[head] * (key position - position), added to a score
  W scale, soft_cap;    ///< factor of scores; bound of scores, 0 = none
  HeadView<const T> q, k, v;
  HeadView<T> out;
  W* log_sums;  ///< [batch, heads, queries]: logarithm of the sum of exponentials of the scores
  HeadView<const T> dout;
  HeadView<T> dq, dk, dv;
  /// Biases that are added to scores, or null: [queries, keys], the same in each batch row, and [batch, keys]. A task
  /// with `bias` has one head.
  const W *bias, *key_bias;
  W* dbias;  ///< [queries, keys] or null: the backward kernel adds the gradients of `bias` over its batch rows
};

/// How pages store keys and values: elements of the model's dtype (None), or 8-bit quantized values with one scale per
/// token and head.
enum class PageCodes { None, Int8, Fp8 };

/// Arguments of attention to keys and values in pages, shared by all queries of a call; see ops/attention/paged.h.
template <class T>
struct PagedTask {
  using W = WideOf<T>;
  int64_t heads, kv_heads, size, padded;  ///< padded: row length of values in elements
  int64_t page;                           ///< tokens per page
  PageCodes codes;
  /// [pages, kv_heads, size, page], [pages, kv_heads, page, padded]: T or quantized values. k: null = the values are
  /// the keys, too
  const void *k, *v;
  const float *k_scales, *v_scales;  ///< [pages, kv_heads, page]: scales of quantized values
  const T* q;
  int64_t q_token, q_head;  ///< strides of q in elements
  T* out;                   ///< [tokens, heads, size]: the result; null: `wide` and `log_sums` receive it
  W *wide, *log_sums;       ///< [tokens, heads, size], [tokens, heads]
  const double* alibi;      ///< [heads]: ALiBi slopes; null = none
  W scale, soft_cap;
  int64_t reach;  ///< number of positions a query sees; its own is the last
};
/// Consecutive queries of one sequence.
struct PagedQueries {
  const int32_t* table;               ///< page table of the sequence
  int64_t first_page, page_stride;    ///< the table's first page and page distance, in pages of the sequence
  int64_t first, count, position;     ///< first token in q and out; number of tokens; position of the first one
  int64_t first_part = 0, parts = 1;  ///< parts of kPagedPart keys that hold all keys these queries see
};

/// Most rows of a BlockProduct, and how much of its depth is copied to scratch memory at a time.
constexpr int64_t kBlockRows = 192, kBlockDepth = 256;
/// Elements of scratch memory of a BlockProduct.
constexpr int64_t kBlockScratch = (kBlockRows + kBlockDepth) * 64;

/// Arguments of C = A B + bias, or C += A B, for a block of at most kBlockRows rows of C. Strides are in elements. Each
/// element of C is one chain of sums in the order of the depth. It depends neither on other rows nor on their number.
template <class T>
struct BlockProduct {
  using W = WideOf<T>;
  int64_t rows, columns, depth;
  const W* a;  ///< [rows, depth], any strides
  int64_t a_row, a_column;
  const T* b;  ///< [depth, columns], one of the strides is 1
  int64_t b_row, b_column;
  const W* bias;  ///< [columns]; null = none, as always if `add`
  W* wide;        ///< C; null: `narrow` is C
  T* narrow;      ///< C, rounded once
  int64_t c_row;
  bool add;
  const T* next_b;  ///< operand of the next block of this thread, with the same strides, to prefetch; null = none
};

/// Arguments of y = x wt for a matrix w of few rows, all contiguous.
template <class T>
struct DotProducts {
  int64_t depth, columns;
  const T* x;    ///< [rows, depth]
  const T* w;    ///< [columns, depth]
  WideOf<T>* y;  ///< [rows, columns]
};

/// Numbers whose NF4 codes share a largest magnitude; see ops/products/nf4_weight.h.
constexpr int64_t kNf4Block = 64;

/// Neighbouring NF4 codes: `count` of them, from number `skipped` of the first block on.
struct Nf4Run {
  const uint8_t* codes;  ///< whole blocks of kNf4Block / 2 bytes; the first number of a byte is its upper half
  const float* absmax;   ///< [blocks]: largest magnitudes
  int64_t skipped, count;
  bool rounded;  ///< T = float: the numbers are rounded to bf16
};

/// Arguments of one matrix product a channel, C[m, n] = sum over k of A[m, k] B[n, k]. The channels of each element are
/// neighbours; the other strides are in elements. See ops/triangle.h.
template <class T>
struct ChannelProduct {
  int64_t rows, columns, depth, channels;
  const T* a;
  int64_t a_row, a_depth;
  const T* b;
  int64_t b_column, b_depth;
  WideOf<T>* c;
  int64_t c_row, c_column;
};

template <class T>
struct Kernels {
  using W = WideOf<T>;
  void (*norm_forward)(const NormForward<T>&, int64_t begin, int64_t end);
  /// Adds the sums over this range of rows to dweight and dbias [columns]. A null pointer skips that gradient.
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
  /// Softmax kernels, for double and float only. softmax_largest writes `largest`. softmax_exponentials reads it,
  /// writes `sums` and `targets`, and replaces the logits by e^(logit - largest). softmax_gradient reads `sums` and
  /// turns these exponentials into the softmax minus the one-hot vector of the label.
  void (*softmax_largest)(const SoftmaxRows<T>&, int64_t begin, int64_t end);
  void (*softmax_exponentials)(const SoftmaxRows<T>&, int64_t begin, int64_t end);
  void (*softmax_gradient)(const SoftmaxRows<T>&, int64_t begin, int64_t end);
  /// Runs all three kernels row by row; the last one only if `gradient` is true.
  void (*softmax)(const SoftmaxRows<T>&, bool gradient, int64_t begin, int64_t end);
  /// Returns the sum of the squares of fp16 elements. Every table has it, for any T.
  double (*sum_of_squares_half)(const Half* x, int64_t n);
  /// Updates elements [0, n); see ops/updates/update.h. The states are: momentum or none for sgd, the first and second
  /// moment for adam, momentum for lion.
  void (*sgd)(const UpdateBuffers<T>&, const SgdFactors<W>&, int64_t n);
  void (*adam)(const UpdateBuffers<T>&, const AdamFactors<W>&, int64_t n);
  void (*lion)(const UpdateBuffers<T>&, const LionFactors<W>&, int64_t n);
  /// Writes the random words of logical indices [first, first + count), see random.h. All tables give the same words.
  void (*random_words)(uint64_t seed, uint64_t first, int64_t count, uint32_t* out);
  /// Returns the number of elements of scratch memory that one thread needs.
  int64_t (*attention_scratch)(const AttentionTask<T>&);
  /// Computes heads [begin, end) of batch * heads.
  void (*attention_forward)(const AttentionTask<T>&, int64_t begin, int64_t end, W* scratch);
  /// Computes key-value heads [begin, end) of batch * kv_heads, with all query heads that read them.
  void (*attention_backward)(const AttentionTask<T>&, int64_t begin, int64_t end, W* scratch);
  /// Computes one key-value head with all query heads that read it. The number of queries is at most max(1, kPagedRows
  /// / (heads / kv_heads)). `scratch` has paged_scratch() elements.
  void (*paged_attention)(const PagedTask<T>&, const PagedQueries&, int64_t kv_head, W* scratch);
  int64_t (*paged_scratch)(const PagedTask<T>&);
  /// Computes the result of paged_attention in pieces, bit for bit. paged_part leaves the result of part number
  /// first_part + `part` of the keys in `state`, of paged_state() elements. paged_merge then turns the states of all
  /// parts, stored one after another, into the result.
  void (*paged_part)(const PagedTask<T>&, const PagedQueries&, int64_t kv_head, int64_t part, W* state, W* scratch);
  void (*paged_merge)(const PagedTask<T>&, const PagedQueries&, int64_t kv_head, W* states);
  int64_t (*paged_state)(const PagedTask<T>&);
  /// Moves the average (the state) towards the gradients: state += (gradient - state) * mix. The new values are
  /// gradient - state, with the new state.
  void (*average)(const UpdateBuffers<T>&, W mix, int64_t n);
  /// row_sums[i] += sum over j of matrix[i, j]^2 and column_sums[j] += sum over i of the same, for rows [begin, end).
  /// Rows are `stride` elements apart.
  void (*square_sums)(const T* matrix, int64_t stride, int64_t columns, int64_t begin, int64_t end, double* row_sums,
                      double* column_sums);
  /// Adds to the sums as square_sums does, for fp16 elements. Every table has it, for any T.
  void (*square_sums_half)(const Half* matrix, int64_t stride, int64_t columns, int64_t begin, int64_t end,
                           double* row_sums, double* column_sums);
  /// Scales rows [begin, end) and returns the sum of the squares of the results.
  double (*scale_matrix)(const ScaledMatrix<T>&, int64_t begin, int64_t end);
  /// encode_block quantizes a block of at most kCodeBlock values and returns its scale. decode_block writes the value
  /// of each code times the scale. All tables give the same bits.
  float (*encode_block)(const CodeTable&, const float* values, int64_t count, uint8_t* codes);
  void (*decode_block)(const CodeTable&, const uint8_t* codes, float scale, int64_t count, float* values);
  /// `scratch` has kBlockScratch elements.
  void (*multiply_block)(const BlockProduct<T>&, W* scratch);
  void (*dot_products)(const DotProducts<T>&, int64_t begin, int64_t end);
  /// Score kernels, for double and float only. score_statistics adds the words of its columns to `largest`, `sums`,
  /// `targets` and `moments`; rows that count nothing stay as they are. score_gradient reads `largest` and the members
  /// after `moments`, and replaces the logits by their gradient; it is 0 in padding and in rows that count nothing.
  void (*score_statistics)(const ScoreRows<T>&, int64_t begin, int64_t end);
  void (*score_gradient)(const ScoreRows<T>&, int64_t begin, int64_t end);
  /// decode_nf4 writes the numbers of a run. encode_nf4 writes kNf4Block / 2 bytes for a block of at most kNf4Block
  /// values, with the code of 0 for those it lacks, and returns the largest magnitude. It is infinite or NaN if a value
  /// is; the codes are then unspecified. All tables give the same bits.
  void (*decode_nf4)(const Nf4Run&, T* out);
  float (*encode_nf4)(const float* values, int64_t count, uint8_t* codes);
  /// sums[c] += sum over rows [begin, end) of d, and products[c] += that of d (x - mean[c]), where d is dy, or
  /// x - mean[c] without dy.
  void (*centred_sums)(const CentredRows<T>&, int64_t begin, int64_t end, W* sums, W* products);
  /// y = (x - mean[c]) scale[c] + shift[c], plus dy factor[c] with dy.
  void (*centred_affine)(const CentredRows<T>&, int64_t begin, int64_t end);
  /// Gates of a sigmoid: sigmoid(gate) * up.
  void (*sigmoid_gate_forward)(const GatedRows<const T>&, T* y, int64_t begin, int64_t end);
  void (*sigmoid_gate_backward)(const T* dy, const GatedRows<const T>&, const GatedRows<T>& out, int64_t begin,
                                int64_t end);
  /// Computes parts [begin, end) of channel_parts(). `scratch` has channel_scratch() elements.
  void (*multiply_channels)(const ChannelProduct<T>&, int64_t begin, int64_t end, W* scratch);
  int64_t (*channel_parts)(const ChannelProduct<T>&);
  int64_t (*channel_scratch)(const ChannelProduct<T>&);
};

/// Returns the table for the calling thread's instruction_set(). T: double, float or Bf16.
template <class T>
const Kernels<T>& kernels();

/// The tables themselves. Each function is defined in one translation unit.
template <class T>
const Kernels<T>& portable_kernels();
template <class T>
const Kernels<T>& avx2_kernels();
template <class T>
const Kernels<T>& avx512_kernels();

}  // namespace colossal::ops
