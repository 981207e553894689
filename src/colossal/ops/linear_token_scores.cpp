#include "colossal/ops/linear_token_scores.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/counted_rows.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/gradient_sum.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/score_slice.h"
#include "colossal/ops/soft_cap.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// On a CPU a slice of logits stays in the cache from the product that makes it to the last pass over it. Many tokens
// use each word that is read, and a weight's gradient is added up in one product.
constexpr int64_t kCachedElements = int64_t{1} << 20, kCachedTokens = 1024;

/// Everything but the tensors; `range` and the sizes of slices are known.
struct ScoreProblem {
  ScoreOptions options;
  double soft_cap;
  SharedProjection shared;
};

struct ScoreProblemCapsule : torch::CustomClassHolder {
  explicit ScoreProblemCapsule(ScoreProblem problem) : problem(std::move(problem)) {}
  ScoreProblem problem;
};

/// Returns the number of ranks whose labels are given.
int64_t ranks_of_labels(const at::Tensor& labels) { return labels.dim() == 2 ? labels.size(0) : 1; }

/// Runs a pass over parts of the vocabulary, and in each over slices of tokens.
class ScorePass {
 public:
  ScorePass(const ScoreProblem& problem, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
            const at::Tensor& labels, bool with_gradients)
      : problem_(problem),
        type_(wide_type(hidden)),
        // Converted once for all parts
        hidden_(problem.shared.products ? hidden : hidden.to(product_type(hidden))),
        weight_(weight),
        bias_(bias.defined() ? bias.to(type_) : bias),
        labels_(labels.reshape({ranks_of_labels(labels), labels.size(-1)})),
        with_gradients_(with_gradients) {}

  /// Rows of a part of the weight.
  struct Words {
    int64_t first, count;
  };
  /// The tokens of a slice, and their logits; `n` ranks have `tokens` of them each.
  struct Slice {
    int64_t from, tokens, n;
    const ScoreSlice& scores;
    const at::Tensor& logits;
    const SoftCap& cap;
    Projection& products;
    /// Returns [k, n * tokens] of x [k, n, T].
    at::Tensor of(const at::Tensor& x) const { return x.narrow(2, from, tokens).reshape({x.size(0), n * tokens}); }
  };

  /// Calls begin(words), then visit(slice) for each slice, then end(words), for all parts of the vocabulary.
  template <class Begin, class Visit, class End>
  void run(const Begin& begin, const Visit& visit, const End& end) {
    const SharedProjection& shared = problem_.shared;
    const int64_t rows = weight_.size(0), all = hidden_.size(0), words = shared.products ? rows : shared.words;
    const std::unique_ptr<Projection> products = shared.products ? shared.products() : nullptr;
    std::optional<LocalProjection> local;
    if (!products)
      local.emplace(std::min(shared.slice, all), weight_.narrow(0, 0, std::min(words, rows)),
                    hidden_.options().dtype(type_));
    for (int64_t first = 0; first < rows || first == 0; first += std::max<int64_t>(words, 1)) {
      const Words part{first, std::min(words, rows - first)};
      if (local && first > 0) local->use(weight_.narrow(0, first, part.count));
      const at::Tensor weight = products ? weight_ : weight_.narrow(0, first, part.count);
      const at::Tensor bias = !bias_.defined() || products ? bias_ : bias_.narrow(0, first, part.count);
      SoftCap cap(problem_.soft_cap, with_gradients_);
      begin(part);
      for (int64_t from = 0; from < all; from += shared.slice) {
        const int64_t tokens = std::min(shared.slice, all - from);
        Projection& of = products ? *products : *local;
        const at::Tensor logits = of.logits(hidden_.narrow(0, from, tokens), weight).to(type_);
        if (bias.defined() && !shared.products_add_bias) logits.add_(bias);
        cap.bend_(logits);
        const ScoreSlice scores(logits, labels_.narrow(1, from, tokens).reshape(-1), range_of(part),
                                1 / problem_.options.temperature);
        visit(Slice{from, tokens, labels_.size(0), scores, logits, cap, of});
      }
      end(part);
    }
  }

 private:
  VocabularyRange range_of(const Words& part) const {
    const VocabularyRange& all = problem_.shared.range;
    if (problem_.shared.products) return all;
    return {all.first + part.first, std::clamp<int64_t>(all.valid - part.first, 0, part.count)};
  }

  const ScoreProblem& problem_;
  const at::ScalarType type_;
  const at::Tensor hidden_, weight_, bias_, labels_;
  const bool with_gradients_;
};

/// Indices of [k, n, T], what is known of each token.
enum KnownOfToken : int64_t { kLargest, kSums, kTargets, kMoments };
enum SavedOfToken : int64_t { kSavedLargest, kSavedLogSums, kSavedEntropies };

/// Returns e^x or log x of each element. On the CPU elements are computed one by one, because the result of LibTorch's
/// operators depends on the position of an element: the last ones of a loop take another path than whole vectors.
at::Tensor each(const at::Tensor& x, float (*narrow)(float), double (*wide)(double)) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  const at::Tensor from = x.contiguous();
  const auto fill = [&](auto* out, const auto* in, auto function) {
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = function(in[i]);
  };
  if (x.scalar_type() == at::kDouble)
    fill(y.mutable_data_ptr<double>(), from.const_data_ptr<double>(), wide);
  else
    fill(y.mutable_data_ptr<float>(), from.const_data_ptr<float>(), narrow);
  return y;
}
at::Tensor exp_of_each(const at::Tensor& x) { return x.is_cpu() ? each(x, std::exp, std::exp) : x.exp(); }
at::Tensor log_of_each(const at::Tensor& x) { return x.is_cpu() ? each(x, std::log, std::log) : x.log(); }

/// Returns statistics of no words, [3 or 4, n, T] as below.
at::Tensor no_statistics(bool entropy, const at::Tensor& labels, const at::TensorOptions& options) {
  const at::Tensor known = at::zeros({entropy ? 4 : 3, ranks_of_labels(labels), labels.size(-1)}, options);
  known[kLargest].fill_(options.dtype() == at::kDouble ? std::numeric_limits<double>::lowest()
                                                       : static_cast<double>(std::numeric_limits<float>::lowest()));
  return known;
}

/// Makes the sums in `known` relative to `largest` instead of their own largest z.
void rescale(const at::Tensor& known, const at::Tensor& before, const at::Tensor& largest) {
  const at::Tensor step = before - largest, factor = exp_of_each(step);
  if (known.size(0) > kMoments) known[kMoments].add_(step * known[kSums]).mul_(factor);
  known[kSums].mul_(factor);
}

/// Returns largest z, sum, target and, for entropies, moment of each token over all words: [3 or 4, n, T].
at::Tensor score_statistics_of(const ScoreProblem& problem, const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& labels) {
  const at::Tensor known =
      no_statistics(problem.options.entropy, labels, hidden.options().dtype(wide_type(hidden)).requires_grad(false));
  const int64_t kinds = known.size(0);
  ScorePass pass(problem, hidden, weight, bias, labels, false);
  const auto nothing = [](const ScorePass::Words&) {};
  pass.run(
      nothing,
      [&](const ScorePass::Slice& slice) {
        const at::Tensor own = slice.of(known);  // a view, unless several ranks' tokens are gathered
        slice.scores.add_to(
            {own[kLargest], own[kSums], own[kTargets], kinds > kMoments ? own[kMoments] : at::Tensor()});
        if (slice.n > 1) known.narrow(2, slice.from, slice.tokens).copy_(own.view({kinds, slice.n, slice.tokens}));
      },
      nothing);
  if (RankReduction* reduction = problem.shared.reduction) {
    const at::Tensor before = known[kLargest].clone();
    at::Tensor largest = known[kLargest], sums = known.narrow(0, kSums, kinds - 1);  // contiguous
    reduction->max(largest);
    rescale(known, before, largest);
    reduction->sum(sums);
  }
  return known;
}

/// Results of forward, and the tensor [2 or 3, n, T] that backward reads.
struct Scored {
  TokenScores scores;
  at::Tensor saved;
};

/// Makes the results from statistics over all words.
Scored scored_by(const at::Tensor& known, const at::Tensor& labels) {
  const at::Tensor ignored = labels.eq(kIgnoredLabel), logs = log_of_each(known[kSums]);
  std::vector<at::Tensor> saved{known[kLargest], logs};
  const auto counted = [&](const at::Tensor& x) { return x.view(labels.sizes()).masked_fill(ignored, 0); };
  Scored result{{counted(known[kTargets] - known[kLargest] - logs), {}}, {}};
  if (known.size(0) > kMoments) {
    saved.push_back(logs - known[kMoments] / known[kSums]);
    result.scores.entropies = counted(saved.back());
  }
  result.saved = at::stack(saved);
  return result;
}

Scored scored(const ScoreProblem& problem, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
              const at::Tensor& labels) {
  return scored_by(score_statistics_of(problem, hidden, weight, bias, labels), labels);
}

/// Adds up the gradient of a matrix or a vector part by part, in the .grad of a leaf or in a new tensor.
class PartialGradient {
 public:
  PartialGradient(const at::Tensor& leaf, bool wanted, at::ScalarType wide) : wide_(wide) {
    if (!wanted) return;
    sum_ = gradient_sum(leaf);
    if (!sum_.defined()) result_ = sum_ = at::zeros(leaf.sizes(), leaf.options().requires_grad(false));
  }
  /// Returns the wide tensor to which the gradient of rows [first, first + count) is to be added; undefined = unwanted.
  at::Tensor* begin(const ScorePass::Words& words) {
    if (!sum_.defined()) return nullptr;
    const at::Tensor rows = sum_.narrow(0, words.first, words.count);
    part_ = sum_.scalar_type() == wide_ ? rows : at::zeros(rows.sizes(), rows.options().dtype(wide_));
    return &part_;
  }
  void end(const ScorePass::Words& words) {
    if (!sum_.defined() || sum_.scalar_type() == wide_) return;
    const at::Tensor rows = sum_.narrow(0, words.first, words.count);
    rows.copy_(part_.add_(rows));  // rounded once
  }
  /// Returns the gradient for autograd: none if it has been added to .grad.
  at::Tensor result() const { return result_; }

 private:
  at::ScalarType wide_;
  at::Tensor sum_, result_, part_;
};

struct LinearTokenScores : Function<LinearTokenScores> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                               const std::optional<at::Tensor>& given, const at::Tensor& labels,
                               const c10::IValue& capsule) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor bias = given.value_or(at::Tensor());
    const tensor::ReadScope read({weight, bias});
    const Scored result = scored(problem_of(capsule), hidden, weight, bias, labels);
    context->save_for_backward({hidden, weight, bias, labels, result.saved});
    context->saved_data["problem"] = capsule;
    context->set_materialize_grads(false);
    variable_list outputs{result.scores.log_probabilities};
    if (result.scores.entropies.defined()) outputs.push_back(result.scores.entropies);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list inputs = context->get_saved_variables();
    const at::Tensor &hidden = inputs[0], &weight = inputs[1], &bias = inputs[2], &labels = inputs[3],
                     &saved = inputs[4];
    const ScoreProblem& problem = problem_of(context->saved_data["problem"]);
    const tensor::ReadScope read({weight, bias});
    const auto type = wide_type(hidden);
    const auto of_tokens = [&](size_t i) {
      const bool defined = i < gradients.size() && gradients[i].defined();
      return defined ? gradients[i].contiguous().view({1, saved.size(1), saved.size(2)}) : at::Tensor();
    };
    const at::Tensor of_value = of_tokens(0), of_entropy = of_tokens(1);
    const at::Tensor dhidden =
        context->needs_input_grad(0) ? at::zeros(hidden.sizes(), hidden.options().dtype(type)) : at::Tensor();
    PartialGradient dweight(weight, context->needs_input_grad(1), type),
        dbias(bias, bias.defined() && context->needs_input_grad(2), type);
    at::Tensor *weight_part = nullptr, *bias_part = nullptr;
    // A layout may store fewer rows of the weight than it computes columns.
    const auto of_bias = [&](const ScorePass::Words& words) {
      return problem.shared.products && bias.defined() ? ScorePass::Words{0, bias.size(0)} : words;
    };
    ScorePass pass(problem, hidden, weight, bias, labels, true);
    pass.run(
        [&](const ScorePass::Words& words) {
          weight_part = dweight.begin(words), bias_part = dbias.begin(of_bias(words));
        },
        [&](const ScorePass::Slice& slice) {
          differentiate(slice, saved, of_value, of_entropy);
          if (bias_part) bias_part->add_(slice.logits.sum(0));
          at::Tensor own;
          if (dhidden.defined()) own = at::empty({slice.tokens, hidden.size(1)}, dhidden.options());
          slice.products.gradients(slice.logits, own.defined() ? &own : nullptr, weight_part);
          if (own.defined()) dhidden.narrow(0, slice.from, slice.tokens).add_(own);
        },
        [&](const ScorePass::Words& words) { dweight.end(words), dbias.end(of_bias(words)); });
    return {dhidden.defined() ? dhidden.to(hidden.scalar_type()) : dhidden, dweight.result(), dbias.result(), {}, {}};
  }

  static void differentiate(const ScorePass::Slice& slice, const at::Tensor& saved, const at::Tensor& of_value,
                            const at::Tensor& of_entropy) {
    const at::Tensor own = slice.of(saved);
    const auto gradient = [&](const at::Tensor& x) { return x.defined() ? slice.of(x)[0] : x; };
    slice.scores.differentiate({.largest = own[kSavedLargest],
                                .log_sums = own[kSavedLogSums],
                                .entropies = of_entropy.defined() ? own[kSavedEntropies] : at::Tensor(),
                                .of_value = gradient(of_value),
                                .of_entropy = gradient(of_entropy)});
    slice.cap.unbend_(slice.logits);
  }

  static const ScoreProblem& problem_of(const c10::IValue& capsule) {
    return static_cast<const ScoreProblemCapsule*>(capsule.toCapsule().get())->problem;
  }
};

/// Sets the sizes of slices that the caller left to the operator.
void choose_slices(SharedProjection& shared, int64_t tokens, int64_t words, at::Device device) {
  const bool is_cached = !shared.products && !is_for_accelerator(device);
  if (shared.slice <= 0) {
    const int64_t slices = std::max<int64_t>((tokens + kCachedTokens - 1) / kCachedTokens, 1);
    shared.slice =
        is_cached ? std::max<int64_t>((tokens + slices - 1) / slices, 1) : slice_tokens(tokens, words, device);
  }
  if (shared.words <= 0) {
    const int64_t least = 256, cached = kCachedElements / std::max<int64_t>(std::min(shared.slice, tokens), 1);
    shared.words = is_cached ? std::max<int64_t>(cached / 64 * 64, least) : std::max<int64_t>(words, 1);
  }
}

}  // namespace

TokenScores linear_token_scores(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& labels, const ScoreOptions& options, double soft_cap,
                                const SharedProjection& given) {
  SharedProjection shared = given;
  if (shared.range.valid < 0) shared.range.valid = weight.size(0);
  check_projected("token_scores", hidden, weight, bias, labels, shared.range, shared.reduction == nullptr,
                  shared.products == nullptr, soft_cap);
  check_scores(options);
  std::optional<CountedRows> rows;
  if (!shared.products) rows.emplace(labels);
  const at::Tensor x = (rows ? rows->of(hidden) : hidden).contiguous(), own = rows ? rows->labels() : labels;
  choose_slices(shared, x.size(0), weight.size(0), x.device());
  const ScoreProblem problem{options, soft_cap, shared};
  const bool wanted = x.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad());
  TokenScores scores;
  if (at::GradMode::is_enabled() && wanted) {
    const auto capsule = c10::IValue::make_capsule(c10::make_intrusive<ScoreProblemCapsule>(problem));
    const auto found =
        LinearTokenScores::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, own, capsule);
    scores = {found[0], options.entropy ? found[1] : at::Tensor()};
  } else {
    const at::NoGradGuard no_grad;
    const tensor::ReadScope read({weight, bias});
    scores = scored(problem, x, weight, bias, own).scores;
  }
  if (rows) {
    scores.log_probabilities = rows->put_back(scores.log_probabilities);
    if (options.entropy) scores.entropies = rows->put_back(scores.entropies);
  }
  return scores;
}

TokenScores logit_scores(const at::Tensor& logits, const at::Tensor& labels, const ScoreOptions& options,
                         int64_t room) {
  const at::NoGradGuard no_grad;
  check_scores(options);
  require(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0), "token_scores",
          "there must be a label for each row of logits: got ", labels.sizes(), " for ", logits.sizes());
  const int64_t words = logits.size(1);
  const auto wide = logits.options().dtype(wide_type(logits)).requires_grad(false);
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < words; first += room > 0 ? room : words) {
    const int64_t valid = std::min(room > 0 ? room : words, words - first);
    // a copy where the operators of LibTorch overwrite the logits
    const at::Tensor own = logits.narrow(1, first, valid).to(wide, /*non_blocking=*/false, !logits.is_cpu());
    const at::Tensor known = no_statistics(options.entropy, labels, wide);
    ScoreSlice(own, labels, {first, valid}, 1 / options.temperature)
        .add_to({known[kLargest][0], known[kSums][0], known[kTargets][0],
                 options.entropy ? known[kMoments][0] : at::Tensor()});
    parts.push_back(known);
  }
  at::Tensor known = parts.front();
  if (parts.size() > 1) {
    at::Tensor largest = known[kLargest].clone();
    for (const at::Tensor& part : parts) largest = at::maximum(largest, part[kLargest]);
    for (const at::Tensor& part : parts) rescale(part, part[kLargest], largest);
    for (size_t i = 1; i < parts.size(); ++i) known.add_(parts[i]);  // in the order of the ranks
    known[kLargest].copy_(largest);
  }
  return scored_by(known, labels).scores;
}

}  // namespace colossal::ops
