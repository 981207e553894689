#include "colossal/nn/token_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::nn {

void TokenMemory::end(int64_t id) { last_.erase(last_.lower_bound({id, 0}), last_.lower_bound({id + 1, 0})); }

at::Tensor TokenMemory::before(int64_t layer, size_t index, int64_t count, const at::Tensor& own) const {
  const Sequence& sequence = sequences_.at(index);
  const int64_t known = std::min(count, sequence.first);
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[1] = count - known;
  const at::Tensor zeros = at::zeros(sizes, own.options());
  if (known == 0) return zeros;
  const auto last = last_.find({sequence.id, layer});
  const int64_t dropped = last == last_.end() ? -1 : last->second.end - sequence.first;
  require(dropped >= 0 && last->second.states.size(1) >= dropped + known, "model",
          "a layer that reads the tokens before each token must have read the ", known, " tokens before token ",
          sequence.first, " of sequence ", sequence.id, ": they are not remembered; begin the sequence anew");
  const at::Tensor& states = last->second.states;
  const at::Tensor found = states.narrow(1, states.size(1) - dropped - known, known);
  return known == count ? found : at::cat({zeros, found}, 1);
}

void TokenMemory::remember(int64_t layer, size_t index, int64_t count, const at::Tensor& last) {
  const Sequence& sequence = sequences_.at(index);
  Last& held = last_[{sequence.id, layer}];
  const int64_t wanted = count + taken_back_;
  at::Tensor all = last.detach();
  if (all.size(1) < wanted && sequence.first > 0 && held.states.defined()) {
    const int64_t kept = held.states.size(1) - (held.end - sequence.first);
    if (kept > 0) all = at::cat({held.states.narrow(1, 0, kept), all}, 1);
  }
  const int64_t size = std::min(wanted, all.size(1));
  // A copy, so that a few tokens do not keep a whole prompt alive.
  held = {all.narrow(1, all.size(1) - size, size).clone(), sequence.first + sequence.tokens};
}

}  // namespace colossal::nn
