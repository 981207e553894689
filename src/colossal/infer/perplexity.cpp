#include "colossal/infer/perplexity.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/ops/projection.h"

namespace colossal::infer {
namespace {

/// Tokens [begin, end) of a text. The predictions of tokens [counted, end) count.
struct Window {
  int64_t begin, end, counted;
};

/// Returns the windows of a text with `tokens` tokens. The last token predicts nothing.
std::vector<Window> windows_of(int64_t tokens, int64_t window, int64_t stride) {
  std::vector<Window> windows;
  const int64_t last = tokens - 1;
  for (int64_t begin = 0, done = 0; done < last; begin += stride) {
    const int64_t end = std::min(begin + window, last);
    windows.push_back({begin, end, done});
    done = end;
  }
  return windows;
}

/// Returns the labels of a window for each of `rows` rows: the token after each, where it counts in the first row. All
/// other rows are copies that count nothing.
at::Tensor labels_of(const at::Tensor& ids, const Window& w, int64_t rows) {
  const at::Tensor labels = at::full({rows, w.end - w.begin}, ops::kIgnoredLabel, ids.options());
  labels[0].slice(0, w.counted - w.begin).copy_(ids.slice(0, w.counted + 1, w.end + 1));
  return labels;
}

void check_texts(const models::ModelShape& shape, const std::vector<std::vector<int64_t>>& texts, int64_t window,
                 int64_t stride) {
  const models::Task task = shape.task();
  require(task.continues(), "perplexity", "perplexity needs a model that predicts the next token: got a ",
          shape.architecture->name, ", which ", task.purpose());
  require(window >= 1 && window <= shape.positions, "perplexity", "a window must have 1 to ", shape.positions,
          " tokens, the model's positions: got ", window);
  require(stride >= 1 && stride <= window, "perplexity", "a stride must be 1 to ", window,
          " tokens, the window, so that no token is left out: got ", stride);
  bool has_two = false;
  for (const auto& text : texts) {
    has_two = has_two || text.size() > 1;
    for (const int64_t id : text)
      require(id >= 0 && id < shape.vocabulary, "perplexity", "ids must lie in the model's vocabulary of ",
              shape.vocabulary, ": got ", id, "; is this the model's tokenizer?");
  }
  require(has_two, "perplexity", "a text must have at least two tokens, one to read and one to predict");
}

}  // namespace

double Likelihood::perplexity() const { return std::exp(mean()); }

double Likelihood::bits_per_byte(int64_t bytes) const { return sum / std::log(2.0) / static_cast<double>(bytes); }

Likelihood likelihood(distributed::DistributedModel& distributed, const std::vector<std::vector<int64_t>>& texts,
                      const LikelihoodOptions& options) {
  const models::Model& model = distributed.decoding_model();
  const int64_t window = options.window == 0 ? model.shape.positions : options.window;
  const int64_t stride = options.stride == 0 ? window : options.stride;
  check_texts(model.shape, texts, window, stride);
  models::head_of(model);
  const at::NoGradGuard no_grad;
  const auto on_device = at::TensorOptions().dtype(at::kLong).device(distributed.parameters().options().device);
  const int64_t rows = model.batch_parts;  // copies of a window; the first copy counts
  Likelihood result;
  for (const auto& text : texts) {
    const at::Tensor ids = at::tensor(text, at::kLong).to(on_device.device());
    for (const Window& w : windows_of(ids.numel(), window, stride)) {
      const nn::ForwardContext step = nn::step_of(nn::token_batch(
          ids.slice(0, w.begin, w.end).repeat({rows, 1}), at::arange(w.end - w.begin, on_device).repeat({rows, 1})));
      const at::Tensor labels = labels_of(ids, w, rows);
      const at::Tensor sum = distributed.everywhere(
          step,
          [&](int, const models::States& end, const nn::ForwardContext& s) {
            return model.head->log_probabilities(end[0], labels, s).sum(at::kDouble).neg();
          },
          at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(on_device.device())));
      result.sum += sum.item<double>();
      result.tokens += w.end - w.counted;
    }
  }
  return result;
}

}  // namespace colossal::infer
