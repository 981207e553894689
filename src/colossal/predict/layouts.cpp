#include "colossal/predict/layouts.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/parallel/pipeline/plan.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/parallel/tensor/layer_cost.h"
#include "colossal/run/layout_keys.h"
#include "colossal/schedule/make.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {
namespace {

std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    divisors.push_back(d);
    if (d * d < number) divisors.push_back(number / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

bool is_same(const parallel::TensorConfig& a, const parallel::TensorConfig& b) {
  return a.size == b.size && a.mode == b.mode && a.depth == b.depth && a.keep_gathered == b.keep_gathered &&
         a.sequence == b.sequence;
}
bool is_same(const parallel::SequenceConfig& a, const parallel::SequenceConfig& b) {
  return a.size == b.size && a.mode == b.mode && a.ulysses == b.ulysses && a.node == b.node;
}
bool is_same(const parallel::ExpertConfig& a, const parallel::ExpertConfig& b) {
  return a.size == b.size && a.tensor == b.tensor && a.node == b.node;
}
bool is_same(const parallel::PipelineConfig& a, const parallel::PipelineConfig& b) {
  return a.size == b.size && a.schedule == b.schedule && a.chunks == b.chunks;
}

template <class Config>
void add_once(std::vector<Config>& list, const Config& config) {
  if (std::none_of(list.begin(), list.end(), [&](const Config& other) { return is_same(config, other); }))
    list.push_back(config);
}

/// Returns true for families whose order a formula gives, so that any size is planned in milliseconds.
bool has_formula(const std::string& name) { return name == "gpipe" || name == "1f1b" || name == "interleaved"; }

}  // namespace

LayoutSpace::LayoutSpace(const train::ConfiguredRun& run, LayoutLimits limits)
    : given_(run.config),
      fresh_(run::without_layout(run.config, limits.keep)),
      shape_(run.models.main().shape),
      further_(run.models.begin() + 1, run.models.end()),
      limits_(std::move(limits)) {
  const auto objective = train::ConfiguredRun{fresh_, run.models}.objective();
  costs_ = run::costs_of(shape_, *objective);
  learned_parts_ = run::LearnedParts(given_.parallel, shape_, *objective);
  if (learned_parts_.any()) learned_ = learned_parts_.of(given_.parallel, given_.micro_batches());
  tokens_ = objective->tokens(objective->example(1), shape_);
  add_tensors();
  add_sequences();
  add_experts();
  add_pipelines();
  if (keeps("memory.recompute"))
    recomputes_ = {given_.memory.recompute};
  else
    recomputes_ = {"none", "selective", "block"};
}

bool LayoutSpace::keeps(const char* key) const { return run::is_among(key, limits_.keep); }

void LayoutSpace::check_further(const char* axis, const std::function<void(const models::ModelShape&)>& check) const {
  for (const train::NamedModel& model : further_) {
    const bool is_split = !model.axes || std::find(model.axes->begin(), model.axes->end(), axis) != model.axes->end();
    if (is_split && !model.is_main_without_adapters) check(model.shape);
  }
}

template <class Check>
bool LayoutSpace::is_legal(const char* axis, const Check& check) const {
  try {
    check();
    return true;
  } catch (const Error& error) {
    refusals_.emplace(axis, error.message());
    return false;
  }
}

void LayoutSpace::add_tensors() {
  const parallel::TensorConfig& kept = fresh_.parallel.tensor;
  for (const int64_t size : divisors_of(limits_.ranks)) {
    const auto modes = size == 1 ? std::vector<parallel::TensorConfig>{{}} : parallel::tensor_modes(size);
    for (parallel::TensorConfig config : modes) {
      if (keeps("parallel.tensor.size") && config.size != kept.size) continue;
      if (keeps("parallel.tensor.mode")) config.mode = kept.mode;
      if (keeps("parallel.tensor.depth")) config.depth = kept.depth;
      if (keeps("parallel.tensor.keep_gathered")) config.keep_gathered = kept.keep_gathered;
      if (keeps("parallel.tensor.sequence")) config.sequence = kept.sequence;
      const auto check = [&] {
        parallel::tensor_axes(config);
        parallel::check_sizes(config, shape_.hidden, 0, tokens_);
        check_further("tensor", [&](const auto& shape) { parallel::check_sizes(config, shape.hidden, 0, tokens_); });
        // Padded heads are legal, but a smaller size without them is faster.
        require(parallel::head_parts(config) <= std::max<int64_t>(1, shape_.heads), "parallel",
                "a rank must have an attention head: got ", shape_.heads, " heads for tensor.size = ", size);
      };
      if (is_legal("tensor", check)) add_once(tensors_, config);
    }
  }
}

void LayoutSpace::add_sequences() {
  const parallel::SequenceConfig& kept = fresh_.parallel.sequence;
  for (const int64_t size : divisors_of(limits_.ranks)) {
    const auto modes = size == 1 ? std::vector<parallel::SequenceConfig>{{}} : parallel::sequence_modes(size);
    for (parallel::SequenceConfig config : modes) {
      if (keeps("parallel.sequence.size") && config.size != kept.size) continue;
      // An inner ring that is no node sends as much between nodes as one ring and does more calls.
      if (config.node > 0 && (limits_.ranks_per_node % config.node != 0 || limits_.ranks <= limits_.ranks_per_node))
        continue;
      if (keeps("parallel.sequence.mode")) config.mode = kept.mode;
      if (keeps("parallel.sequence.ulysses")) config.ulysses = kept.ulysses;
      if (keeps("parallel.sequence.node")) config.node = kept.node;
      const auto check = [&] {
        parallel::check_sequence(config, tokens_);
        parallel::check_heads(config, shape_.heads);
        check_further("sequence", [&](const auto& shape) { parallel::check_heads(config, shape.heads); });
      };
      if (is_legal("sequence", check)) add_once(sequences_, config);
    }
  }
}

void LayoutSpace::add_experts() {
  const parallel::ExpertConfig& kept = fresh_.parallel.expert;
  for (const int64_t size : divisors_of(limits_.ranks))
    for (const char* tensor : {"deal", "split"}) {
      parallel::ExpertConfig config = kept;  // with `compress`, which is not a matter of layouts
      if (keeps("parallel.expert.size") && size != kept.size) continue;
      config.size = size;
      if (!keeps("parallel.expert.tensor"))
        config.tensor = shape_.part<models::MixtureSizes>().experts > 0 ? tensor : "deal";
      if (is_legal("expert", [&] { parallel::check_experts(shape_.part<models::MixtureSizes>().experts, config); }))
        add_once(experts_, config);
    }
}

void LayoutSpace::add_pipelines() {
  const parallel::PipelineConfig& kept = fresh_.parallel.pipeline;
  for (const int64_t size : divisors_of(limits_.ranks)) {
    if (keeps("parallel.pipeline.size") && size != kept.size) continue;
    for (const schedule::Family& family : schedule::families())
      for (const int64_t chunks : {0, 2, 4}) {
        parallel::PipelineConfig config = kept;
        config.size = size;
        config.micro_batches = 0;
        config.chunks = family.takes_chunks && chunks != family.default_chunks ? chunks : 0;
        config.schedule = family.name;
        if (keeps("parallel.pipeline.schedule")) config.schedule = kept.schedule;
        if (keeps("parallel.pipeline.chunks")) config.chunks = kept.chunks;
        if (size == 1) config = parallel::PipelineConfig();
        const auto check = [&] {
          if (size == 1) return;
          parallel::PipelineConfig full = config;
          full.micro_batches = 4 * size;  // the rules on micro-batches are checked with their number
          parallel::check_sizes(full);
          const schedule::Placement placement = schedule::placement_of({.name = config.schedule,
                                                                        .stages = static_cast<int>(size),
                                                                        .micro_batches = static_cast<int>(4 * size),
                                                                        .chunks = static_cast<int>(config.chunks)});
          require(placement.stages() <= static_cast<int64_t>(costs_.blocks.size()), "pipeline",
                  "every stage must have a block: got ", costs_.blocks.size(), " blocks for ", placement.stages(),
                  " stages of ", config.schedule);
          check_further("pipeline", [&](const auto& shape) {
            require(placement.stages() <= shape.blocks(), "pipeline",
                    "every stage must have a block of each model: got ", shape.blocks(), " blocks for ",
                    placement.stages(), " stages of ", config.schedule);
          });
        };
        if (is_legal("pipeline", check)) add_once(pipelines_, config);
      }
  }
}

int64_t LayoutSpace::samples_of_replica(const Layout& layout) const {
  const int64_t parts = layout.data * expert(layout).size;
  const int64_t batch = given_.training.batch_size;
  if (batch % parts == 0) return batch / parts;
  refusals_.emplace("data", concat("training.batch_size must divide by the replicas: got ", batch, " samples for ",
                                   parts, " replicas"));
  return 0;
}

void LayoutSpace::for_each(const std::function<void(const Layout&)>& visit) const {
  const auto index = [](size_t i) { return static_cast<int32_t>(i); };
  for (size_t t = 0; t < tensors_.size(); ++t)
    for (size_t s = 0; s < sequences_.size(); ++s)
      for (size_t e = 0; e < experts_.size(); ++e) {
        const int64_t product = tensors_[t].size * sequences_[s].size * experts_[e].size;
        if (limits_.ranks % product != 0) continue;
        const int64_t inner_ring = keeps("parallel.sequence.node") ? 0 : sequences_[s].node;
        if (inner_ring > 0 && inner_ring * tensors_[t].size != limits_.ranks_per_node) continue;
        if (experts_[e].splits() && (tensors_[t].size == 1 || tensors_[t].mode != "1d")) continue;
        distributed::ParallelConfig parallel;
        parallel.tensor = tensors_[t];
        parallel.sequence = sequences_[s];
        parallel.expert = experts_[e];
        const auto check = [&] {
          if (parallel.sequence.size > 1) distributed::check_heads(parallel, shape_);
          parallel::check_sequence(parallel.sequence, tokens_, parallel::sequence_parts(parallel.tensor));
          parallel::check_expert_node(parallel.expert, parallel.tensor);
        };
        if (!is_legal(parallel.sequence.size > 1 ? "sequence" : "tensor", check)) continue;
        for (size_t p = 0; p < pipelines_.size(); ++p) {
          if (limits_.ranks % (product * pipelines_[p].size) != 0) continue;
          Layout layout{.tensor = index(t), .sequence = index(s), .expert = index(e), .pipeline = index(p)};
          layout.data = static_cast<int32_t>(limits_.ranks / product / pipelines_[p].size);
          if (keeps("parallel.data") && layout.data != given_.parallel.data) continue;
          visit_batches(layout, visit);
        }
      }
}

void LayoutSpace::visit_batches(Layout layout, const std::function<void(const Layout&)>& visit) const {
  const int64_t samples = samples_of_replica(layout), parts = parallel::batch_parts(tensor(layout));
  const parallel::PipelineConfig& stages = pipeline(layout);
  if (samples == 0) return;
  if (samples % parts != 0) {
    refusals_.emplace("data", concat("the samples of a replica must divide by the ", parts, " parts of mode ",
                                     tensor(layout).mode, ": got ", samples));
    return;
  }
  const bool has_pipeline = stages.size > 1;
  const bool is_kept = has_pipeline ? keeps("parallel.pipeline.micro_batches") : keeps("training.accumulate");
  int64_t kept = has_pipeline ? given_.parallel.pipeline.micro_batches : given_.training.accumulate;
  if (is_kept && kept == 0) {  // as many as a run of this size takes
    if (!is_legal("pipeline", [&] { kept = parallel::micro_batches_of(stages, samples, parts); })) return;
  }
  for (const int64_t count : divisors_of(samples / parts)) {
    if (is_kept && count != kept) continue;
    if (has_pipeline) {
      if (!has_formula(stages.schedule) && stages.size * count > kMaxSearchedCells) continue;
      const schedule::Family& family = schedule::find_family(stages.schedule);
      const schedule::Options options{
          .name = stages.schedule,
          .stages = static_cast<int>(stages.size),
          .micro_batches = static_cast<int>(count),
          .chunks = static_cast<int>(stages.chunks > 0 ? stages.chunks : family.default_chunks)};
      if (const std::string fault = family.fault_of(options); !fault.empty()) {
        refusals_.emplace("pipeline", fault);
        continue;
      }
    }
    layout.micro_batches = static_cast<int32_t>(count);
    visit_memory(layout, visit);
  }
}

void LayoutSpace::visit_memory(Layout layout, const std::function<void(const Layout&)>& visit) const {
  const int64_t copies = layout.data * sequence(layout).size;  // of experts, the parameters with the fewest
  std::vector<int32_t> groups{0};
  if (keeps("parallel.zero_group")) {
    groups = {static_cast<int32_t>(given_.parallel.zero_group)};
  } else {
    const int64_t in_node = limits_.ranks_per_node / tensor(layout).size;
    if (in_node > 1 && in_node < copies && copies % in_node == 0) groups.push_back(static_cast<int32_t>(in_node));
  }
  layout.uses_tiers = given_.memory.has_tiers();  // budgets are the user's: no layout does without them
  for (int8_t zero = 0; zero <= 3; ++zero) {
    if (keeps("parallel.zero") && zero != given_.parallel.zero) continue;
    if (zero > 0 && copies == 1 && !keeps("parallel.zero")) continue;
    if (given_.memory.device > 0 && zero != 0 && zero != 3) continue;  // memory.device needs 0 or 3
    for (const int32_t group : groups) {
      if ((zero == 0 && group != 0 && !keeps("parallel.zero_group")) || (group > 0 && copies % group != 0)) continue;
      layout.zero = zero;
      layout.zero_group = group;
      if (!learns_the_same(layout)) continue;
      for (size_t r = 0; r < recomputes_.size(); ++r) {
        layout.recompute = static_cast<int8_t>(r);
        visit(layout);
      }
    }
  }
}

bool LayoutSpace::learns_the_same(const Layout& layout) const {
  if (learned_.empty()) return true;
  const auto parts = learned_parts_.of(parallel_of(layout), layout.micro_batches);
  const std::string change = run::learned_change(learned_, parts);
  if (!change.empty()) refusals_.emplace("training", change);
  return change.empty();
}

distributed::ParallelConfig LayoutSpace::parallel_of(const Layout& layout) const {
  distributed::ParallelConfig parallel = fresh_.parallel;
  parallel.data = layout.data;
  parallel.tensor = tensor(layout);
  parallel.sequence = sequence(layout);
  parallel.expert = expert(layout);
  parallel.pipeline = pipeline(layout);
  parallel.zero = layout.zero;
  parallel.zero_group = layout.zero_group;
  if (parallel.pipeline.size > 1) parallel.pipeline.micro_batches = layout.micro_batches;
  if (layout.zero != 3) {  // keys of ZeRO 3 that were kept
    parallel.reshard_after_forward = true;
    parallel.max_gathered_mib = 0;
  }
  return parallel;
}

run::Config LayoutSpace::config_of(const Layout& layout) const {
  run::Config config = fresh_;
  config.parallel = parallel_of(layout);
  config.training.accumulate = config.parallel.pipeline.size > 1 ? 1 : layout.micro_batches;
  config.memory.recompute = recomputes_[static_cast<size_t>(layout.recompute)];
  return config;
}

run::Config LayoutSpace::plain_data() const {
  run::Config config = run::without_layout(given_, {});
  config.parallel.data = limits_.ranks;
  return config;
}

}  // namespace colossal::predict
