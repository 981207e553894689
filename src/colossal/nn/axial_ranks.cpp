#include "colossal/nn/axial_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace colossal::nn {
namespace {

/// A switch whose result was known when it began.
class DoneSwitch final : public PendingSwitch {
 public:
  explicit DoneSwitch(at::Tensor x) : x_(std::move(x)) {}
  at::Tensor wait() override { return std::move(x_); }

 private:
  at::Tensor x_;
};

}  // namespace

Range AxialRanks::range(int64_t whole, int64_t rank) const {
  return near_even_share(whole, size(), rank).ranges(whole, "axis").front();
}

at::Tensor AxialRanks::part(const at::Tensor& whole, int64_t dim) const {
  if (!whole.defined() || size() == 1) return whole;
  const Range here = own(whole.size(dim));
  return whole.narrow(dim, here.first, here.size);
}

void AxialRanks::for_runs(int64_t whole, int64_t at_once, const std::function<void(int64_t, int64_t)>& body) const {
  const int64_t longest = range(whole, 0).size, here = own(whole).size;
  for (int64_t first = 0; first < longest; first += at_once)
    body(std::min(first, here), std::clamp<int64_t>(here - first, 0, at_once));
}

at::Tensor AxialRanks::gathered(const at::Tensor& own, int64_t, int64_t) const { return own; }

at::Tensor AxialRanks::summed_part(const at::Tensor& partial, int64_t) const { return partial; }

at::Tensor AxialRanks::total(const at::Tensor& partial) const { return partial; }

at::Tensor AxialRanks::mirrored(const at::Tensor& z) const {
  const int64_t n = z.size(2);
  return switched(z, {1, n, "rows of pairs"}, {2, n, "columns of pairs"}).transpose(1, 2);
}

at::Tensor AxialRanks::switched(const at::Tensor& x, const Axis&, const Axis&) const { return x; }

std::unique_ptr<PendingSwitch> AxialRanks::begin_switch(const at::Tensor& x, const Axis& from, const Axis& to) const {
  return std::make_unique<DoneSwitch>(switched(x, from, to));
}

void AxialRanks::each_piece(const at::Tensor& own, int64_t, const std::vector<int64_t>&,
                            const std::function<void(const at::Tensor&, int64_t)>& use) const {
  use(own, 0);
}

at::Tensor AxialRanks::sum_of_pieces(const std::vector<int64_t>&,
                                     const std::function<at::Tensor(int64_t)>& make) const {
  return make(0);
}

}  // namespace colossal::nn
