#include "colossal/train/recompute_choice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/comm/agreement.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/device_meter.h"
#include "colossal/memory/store_plan.h"
#include "colossal/plan/rotor.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/engine.h"
#include "colossal/train/measured_chain.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/placed_model.h"
#include "colossal/train/store_options.h"

namespace colossal::train {
namespace {

constexpr double kCpuOperationsPerByte = 100, kAcceleratorOperationsPerByte = 10000;
/// Whole chunks that exist at once: one in use, and the next one that is gathered, or the last one that is reduced.
constexpr int64_t kWholeChunks = 2;

/// Returns the first rank of the pipeline stages of `rank`.
int first_rank_of(const distributed::ParallelConfig& parallel, int rank) {
  const auto together = static_cast<int>(parallel.ranks() / parallel.pipeline.size);
  return rank / together * together;
}

/// Returns the bytes of whole parameters and gradients of the main model while blocks run, where only shards of them
/// stay.
int64_t whole_chunk_bytes(const ConfiguredRun& run, int rank) {
  ModelOnShapes here(run, run.models.main(), rank);
  const at::ScalarType dtype = run.config.precision.dtype();
  const auto [chunks, gradients] = store_options(run.config, dtype);
  int64_t of_values = 0, of_gradients = 0;  // bytes of the largest one
  for (const memory::PlannedChunk& chunk : memory::plan_store(here.model().parameters(), here.mesh(), chunks).chunks) {
    of_values = std::max(of_values, chunk.length * chunk.element_size());
    if (at::isFloatingType(chunk.dtype))  // codes have no gradients
      of_gradients = std::max(of_gradients, chunk.length * static_cast<int64_t>(c10::elementSize(gradients.sums)));
  }
  return kWholeChunks * ((chunks.sharing.parameters ? of_values : 0) + (chunks.sharing.gradients ? of_gradients : 0));
}

/// Returns the bytes that the tensors of this rank may take.
int64_t device_bytes_of(const run::MemoryConfig& memory, const comm::World& world, at::Device device) {
  if (memory.device > 0) return memory.device;
  if (tensor::device_meant(device).is_cpu())
    return static_cast<int64_t>((kUsablePart * usable_memory() - static_cast<double>(memory.host)) /
                                world.local_size());
  const int64_t all = memory::total_bytes(device);
  require(all > 0, "memory",
          "recompute = \"auto\" must know the memory of the device: got a device that does not report it, or that this "
          "machine does not have; set memory.activations");
  return static_cast<int64_t>(kUsablePart * static_cast<double>(all));
}

/// Returns the most passes of rank `index` between their forward and the end of their backward.
int64_t passes_in_flight(const schedule::Schedule& schedule, int index) {
  using schedule::Action;
  const std::vector<schedule::PipelineOp>& steps = schedule.ranks.at(index);
  std::set<std::pair<int, int>> split, trained, live;  // by chunk and micro-batch
  for (const schedule::PipelineOp& step : steps) {
    if (schedule::is_backward(step.action)) trained.insert({step.chunk, step.micro_batch});
    if (step.action == Action::BackwardWeight) split.insert({step.chunk, step.micro_batch});
  }
  size_t most = 1;
  for (const schedule::PipelineOp& step : steps) {
    const std::pair<int, int> pass{step.chunk, step.micro_batch};
    if (step.action == Action::Forward && trained.contains(pass)) live.insert(pass);
    most = std::max(most, live.size());
    if (step.action == Action::BackwardWeight || (schedule::is_backward(step.action) && !split.contains(pass)))
      live.erase(pass);
  }
  return static_cast<int64_t>(most);
}

/// Returns the stages of a rank, ascending.
std::vector<StageBlocks> stages_of(const distributed::DistributedModel& built) {
  const parallel::PipelineExecutor& executor = built.executor();
  const schedule::Placement& place = executor.schedule().placement;
  std::vector<StageBlocks> stages;
  for (int chunk = 0; chunk < place.chunks(); ++chunk) {
    const int stage = place.stage_of(executor.rank(), chunk);
    stages.push_back({built.cuts()[stage], built.cuts()[stage + 1], stage + 1 == place.stages()});
  }
  std::sort(stages.begin(), stages.end(), [](const StageBlocks& a, const StageBlocks& b) { return a.first < b.first; });
  return stages;
}

void shift(Segments& segments, int64_t by) {
  for (Segment& segment : segments) {
    segment.first += by, segment.last += by;
    shift(segment.parts, by);
  }
}

[[noreturn]] void refuse_budget(const std::vector<plan::Chain>& chains, int64_t in_flight, int64_t budget) {
  int64_t smallest = 0;
  for (const plan::Chain& chain : chains) smallest = std::max(smallest, plan::smallest_budget(chain));
  throw Error("memory", concat("recompute = \"auto\" needs at least ", readable_bytes(smallest * in_flight),
                               " of each rank for activations, with ", in_flight, " micro-batch(es) in flight: got ",
                               budget < 0 ? "less than nothing, because the model itself exceeds the device"
                                          : readable_bytes(budget),
                               "; set memory.activations = \"", print_bytes(smallest * in_flight),
                               "\" if the device has it, take more micro-batches (training.accumulate, "
                               "parallel.pipeline.micro_batches) or shard more"));
}

std::string blocks_of(const Segments& segments) {
  return join(segments, " ", [](const Segment& segment) {
    return concat("[", segment.first, segment.last > segment.first + 1 ? concat("-", segment.last - 1) : "",
                  segment.parts.empty() ? "" : " " + blocks_of(segment.parts),
                  segment.is_on_host ? " on the host]" : "]");
  });
}

}  // namespace

std::string describe(const RecomputeChoice& choice) {
  return concat("recompute = \"auto\": ",
                choice.segments.empty()
                    ? "keeps all activations"
                    : concat("recomputes blocks ", blocks_of(choice.segments), "; ", std::lround(100 * choice.repeated),
                             " % of the forward pass runs again"),
                "; activations take ", readable_bytes(choice.peak), " of ", readable_bytes(choice.budget), ", with ",
                choice.in_flight, choice.in_flight == 1 ? " micro-batch" : " micro-batches", " in flight");
}

int64_t activation_budget(const ConfiguredRun& run, int rank, int64_t device_bytes) {
  const int first = first_rank_of(run.config.parallel, rank);
  int64_t held = whole_chunk_bytes(run, first);
  for (const MemoryNeed& need : memory_needs(run, first))
    if (need.place == "device" && need.what != "largest chunk") held += need.bytes;
  return device_bytes - held;
}

int64_t agreed_activation_budget(const ConfiguredRun& run, comm::Mesh& mesh, at::Device device) {
  const run::MemoryConfig& memory = run.config.memory;
  if (memory.activations > 0) return memory.activations;
  int64_t own = 0;
  comm::agree(mesh.all(), at::kCPU, [&] {
    own = activation_budget(run, mesh.world().rank(), device_bytes_of(memory, mesh.world(), device));
  });
  at::Tensor all = at::tensor({own}, at::kLong);
  mesh.all().all_reduce(all, comm::Reduce::Min).wait();
  return all.item<int64_t>();
}

RecomputeChoice choose_recompute(const ConfiguredRun& run, const distributed::DistributedModel& built, int64_t budget) {
  const std::vector<StageBlocks> stages = stages_of(built);
  std::vector<plan::Chain> chains = measured_chains(run, stages);
  if (run.config.memory.device > 0 || !run.config.memory.disk.empty())
    for (plan::Chain& chain : chains)
      chain.host_time_per_byte =
          simulated_by_meta(run.config.run) == at::kCPU ? kCpuOperationsPerByte : kAcceleratorOperationsPerByte;
  RecomputeChoice choice{.is_chosen = true, .budget = budget};
  choice.in_flight = passes_in_flight(built.executor().schedule(), built.executor().rank());
  double forward = 0, repeated = 0;
  for (size_t i = 0; i < chains.size(); ++i) {
    auto found = plan::plan_recomputation(chains[i], budget / choice.in_flight);
    if (!found) refuse_budget(chains, choice.in_flight, budget);
    for (const plan::ChainStage& stage : chains[i].stages) forward += stage.forward;
    repeated += found->time - plan::run_chain(chains[i], {}).time;
    choice.peak = std::max(choice.peak, choice.in_flight * found->peak);
    shift(found->segments, stages[i].first);
    choice.segments.insert(choice.segments.end(), found->segments.begin(), found->segments.end());
  }
  choice.repeated = forward > 0 ? repeated / forward : 0;
  return choice;
}

}  // namespace colossal::train
