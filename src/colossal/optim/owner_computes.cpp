#include "colossal/optim/owner_computes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace colossal::optim {

OwnerComputes::OwnerComputes(comm::Group& group, std::vector<Matrix> matrices)
    : group_(group), matrices_(std::move(matrices)), owners_(matrices_.size()) {
  const auto numel = [&](size_t k) { return c10::multiply_integers(matrices_[k].shape); };
  int64_t largest = 0, room = 0;
  for (size_t k = 0; k < matrices_.size(); ++k) largest = std::max(largest, numel(k));
  for (size_t k = 0; k < matrices_.size(); ++k, room -= numel(k - 1)) {
    if (k > 0 && numel(k) <= room) continue;
    windows_.push_back(k);
    room = largest * group.size();
  }
  windows_.push_back(matrices_.size());
  for (size_t w = 0; w + 1 < windows_.size(); ++w) {
    std::vector<size_t> order(windows_[w + 1] - windows_[w]);
    std::iota(order.begin(), order.end(), windows_[w]);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return matrices_[a].cost > matrices_[b].cost; });
    std::vector<double> loads(static_cast<size_t>(group.size()));
    for (const size_t k : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      owners_[k] = static_cast<int>(least - loads.begin());
      *least += matrices_[k].cost;
    }
  }
}

std::set<size_t> OwnerComputes::shards_of(size_t window) const {
  std::set<size_t> numbers;
  for (size_t k = windows_[window]; k < windows_[window + 1]; ++k)
    numbers.insert(matrices_[k].shards.begin(), matrices_[k].shards.end());
  return numbers;
}

size_t OwnerComputes::max_shards() const {
  size_t most = 0;
  for (size_t w = 0; w + 1 < windows_.size(); ++w) most = std::max(most, shards_of(w).size());
  return most;
}

void OwnerComputes::run(const std::vector<memory::Shard>& shards, const at::TensorOptions& options,
                        const Work& work) const {
  Leases leases;
  for (size_t w = 0; w + 1 < windows_.size(); ++w) {
    const std::set<size_t> numbers = shards_of(w);  // leases that continue from the window before are kept
    std::erase_if(leases, [&](const auto& lease) { return !numbers.count(lease.first); });
    for (const size_t i : numbers)
      if (!leases.count(i)) leases[i] = shards[i].lease(work.needs);
    if (w + 2 < windows_.size())
      for (const size_t i : shards_of(w + 1))
        if (!leases.count(i)) shards[i].prefetch(work.needs);
    run_window(w, options, work, leases);
  }
}

void OwnerComputes::run_window(size_t window, const at::TensorOptions& options, const Work& work,
                               const Leases& leases) const {
  std::vector<std::vector<size_t>> of_owner(static_cast<size_t>(group_.size()));
  for (size_t k = windows_[window]; k < windows_[window + 1]; ++k) of_owner[owners_[k]].push_back(k);
  std::vector<at::Tensor> results;  // the results for this rank's matrices, flattened
  for (int owner = 0; owner < group_.size(); ++owner) {
    const std::vector<size_t>& numbers = of_owner[owner];
    if (numbers.empty()) continue;
    int64_t size = 0, first = 0;
    for (const size_t k : numbers) size += c10::multiply_integers(matrices_[k].shape);
    at::Tensor all = at::zeros({size}, options);
    std::vector<at::Tensor> wholes;
    for (const size_t k : numbers) {
      const int64_t numel = c10::multiply_integers(matrices_[k].shape);
      wholes.push_back(all.narrow(0, first, numel).view(matrices_[k].shape));
      first += numel;
      work.collect(k, wholes.back(), leases);
    }
    group_.reduce(all, owner, comm::Reduce::Sum).wait();
    if (owner != group_.rank()) continue;
    for (size_t i = 0; i < numbers.size(); ++i) results.push_back(wholes[i]);
  }
  const std::vector<size_t>& own = of_owner[group_.rank()];
  for (size_t i = 0; i < own.size(); ++i) results[i] = work.compute(own[i], results[i]).reshape({-1});
  for (int owner = 0; owner < group_.size(); ++owner) {
    const std::vector<size_t>& numbers = of_owner[owner];
    if (numbers.empty()) continue;
    int64_t size = 0, first = 0;
    for (const size_t k : numbers) size += c10::multiply_integers(matrices_[k].result);
    at::Tensor all = owner == group_.rank() ? at::cat(results) : at::empty({size}, options);
    group_.broadcast(all, owner).wait();
    for (const size_t k : numbers) {
      const int64_t numel = c10::multiply_integers(matrices_[k].result);
      work.hand_out(k, all.narrow(0, first, numel).view(matrices_[k].result), leases);
      first += numel;
    }
  }
}

}  // namespace colossal::optim
