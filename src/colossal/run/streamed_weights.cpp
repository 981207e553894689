#include "colossal/run/streamed_weights.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/comm/agreement.h"
#include "colossal/memory/tiers/eviction_policy.h"
#include "colossal/run/stored_weights.h"

namespace colossal::run {
namespace {

memory::ChunkOptions chunk_options(const WeightBudget& budget, at::ScalarType dtype,
                                   std::shared_ptr<memory::OffloadStore> offload) {
  memory::ChunkOptions options;
  options.sharing = memory::Sharing::of_stage(3);
  options.sharers = 1;
  options.capacity = budget.chunk / static_cast<int64_t>(c10::elementSize(dtype));
  options.offload = std::move(offload);
  options.inference = true;
  options.left_out = budget.on_device;
  return options;
}

/// Returns the smallest budgets that work for every rank, because stages of a pipeline need different amounts.
WeightBudget max_over_ranks(WeightBudget budget, comm::Mesh& mesh) {
  at::Tensor maxima = at::tensor({budget.min_device, budget.min_host}, at::kLong);
  mesh.all().all_reduce(maxima, comm::Reduce::Max).wait();
  budget.min_device = maxima[0].item<int64_t>(), budget.min_host = maxima[1].item<int64_t>();
  return budget;
}

}  // namespace

StreamedWeights::StreamedWeights(distributed::DistributedModel& model, comm::Mesh& mesh, const MemoryConfig& memory)
    : mesh_(mesh), parameters_(model.parameters()) {
  nn::Parameters& parameters = parameters_;
  for (nn::Parameter& p : parameters) p.value.requires_grad_(false);
  const at::Device device = parameters.options().device;
  const int64_t ranks = mesh.world().local_size();
  const WeightBudget budget = plan_weights(parameters, memory, ranks), needed = max_over_ranks(budget, mesh);
  comm::agree(mesh.all(), at::kCPU, [&] {
    check_weight_budget(needed, memory, ranks, device);
    memory::TieredStore::Options options{.host_bytes = budget.travelling, .ahead = 1, .device = device};
    options.eviction_policy = memory::make_eviction_policy(memory.placement);
    if (budget.needs_disk() && !memory.disk.empty()) options.disk = std::make_shared<memory::DiskSpace>(memory.disk);
    tiers_ = std::make_shared<memory::TieredStore>(std::move(options));
  });
  offload_ = std::make_shared<memory::LoadedStore>(tiers_, budget.residence);
  comm::agree(mesh.all(), at::kCPU, [&] {
    store_ = std::make_unique<memory::ChunkStore>(parameters, mesh,
                                                  chunk_options(budget, parameters.options().dtype, offload_));
    for (nn::Parameter& p : parameters) {
      if (!budget.on_device.contains(&p)) continue;
      p.value.set_data(at::empty(p.value.sizes(), p.value.options()));
      for (checkpoint::NamedTensor& tensor :
           fillable_weights(parameters, p, [this](const auto& body) { store_->attempt(body); }))
        on_device_.push_back(std::move(tensor));
      device_bytes_ += static_cast<int64_t>(p.value.nbytes());
    }
  });
  model.set_end_of_pass([this] { end_pass(); });
}

std::vector<checkpoint::NamedTensor> StreamedWeights::tensors() {
  std::vector<checkpoint::NamedTensor> tensors = fillable_weights_of(*store_, parameters_);
  tensors.insert(tensors.end(), on_device_.begin(), on_device_.end());
  return tensors;
}

void StreamedWeights::end_pass() {
  comm::agree(mesh_.all(), at::kCPU, [&] { store_->end_pass(); });
  tiers_->end_step();
  tiers_->begin_step();
}

int64_t StreamedWeights::peak_device_bytes() const {
  const bool is_copied = !store_->chunks().empty() && !store_->chunks().front()->options().device().is_cpu();
  return device_bytes_ + (is_copied ? store_->counts().peak_gathered : 0);
}

}  // namespace colossal::run
