#include "colossal/predict/step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/number.h"
#include "colossal/comm/call.h"
#include "colossal/comm/traffic.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/task.h"
#include "colossal/predict/check.h"
#include "colossal/predict/page.h"
#include "colossal/predict/rank_load.h"
#include "colossal/predict/role_costs.h"
#include "colossal/run/objective.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {
namespace {

using Kind = StepEvent::Kind;

std::string work_text(const StepEvent& event, const StepEvents& events) {
  switch (event.kind) {
    case Kind::Call:
      return concat(comm::to_string(static_cast<comm::Collective>(event.collective)), " over ",
                    events.groups[static_cast<size_t>(event.group)].name);
    case Kind::Product:
      return concat("product [", event.m, ", ", event.n, ", ", event.k, "]");
    case Kind::Attention:
      return "attention";
    case Kind::Wait:
      return "a wait for a call";
    case Kind::HostCopy:
      return "a host copy";
    case Kind::Disk:
      return "a transfer of the disk";
    case Kind::Elementwise:
      break;
  }
  return "elementwise work";
}

/// Returns true if a step that draws answers is at its peak then: drawing comes first, and has no recorded products.
bool is_fullest_in_drawing(const train::RecordedStep& step) {
  const auto product = std::find_if(step.list.begin(), step.list.end(),
                                    [](const StepEvent& event) { return event.kind == Kind::Product; });
  return step.cache_bytes > 0 && step.memory.peak_event <= product - step.list.begin();
}

/// Describes the moment of the peak: "backward of micro-batch 3, after product [4096, 1024, 4096]".
std::string moment_text(const train::RecordedStep& step) {
  if (is_fullest_in_drawing(step)) return "drawing of answers";
  if (step.list.empty()) return "a step without work";
  const auto after =
      static_cast<size_t>(std::clamp<int64_t>(step.memory.peak_event, 0, static_cast<int64_t>(step.list.size())));
  const StepEvent& event = step.list[after == 0 ? 0 : after - 1];
  std::string text = comm::to_string(static_cast<comm::Phase>(event.phase));
  if (event.recomputed) text += " (recomputation)";
  if (event.micro_batch >= 0) text += concat(" of micro-batch ", event.micro_batch);
  return concat(text, after == 0 ? ", before " : ", after ", work_text(event, step));
}

std::vector<plan::PredictedLink> links_of(const StepEvents& events, int rank, const plan::Costs& costs) {
  constexpr int kHost = 2, kDisk = 3;  // after the kinds of plan::GroupPlace
  const std::array<const char*, 4> names{"inside a node", "between nodes", "to the host", "to the disk"};
  std::map<std::pair<int32_t, int32_t>, int> known;  // by group and peer of a message
  const auto link_of = [&](const StepEvent& event) {
    if (event.kind == Kind::HostCopy) return kHost;
    if (event.kind == Kind::Disk) return kDisk;
    const bool is_message = event.collective == StepEvent::kSend || event.collective == StepEvent::kReceive;
    const auto [found, is_new] = known.try_emplace({event.group, is_message ? event.peer : -1}, 0);
    const std::vector<int>& ranks = events.groups[static_cast<size_t>(event.group)].ranks;
    if (is_new)
      found->second =
          costs.place_of(is_message ? std::vector<int>{rank, ranks.at(static_cast<size_t>(event.peer))} : ranks).link;
    return found->second;
  };
  std::map<int, plan::PredictedLink> rows;
  for (const StepEvent& event : events.list) {
    if (event.kind != Kind::Call && event.kind != Kind::HostCopy && event.kind != Kind::Disk) continue;
    const int link = link_of(event);
    plan::PredictedLink& row = rows[link];
    row.link = names.at(static_cast<size_t>(link));
    ++row.calls;
    row.bytes += event.bytes;
  }
  std::vector<plan::PredictedLink> list;
  for (auto& [link, row] : rows) list.push_back(std::move(row));
  return list;
}

bool has_host_link(const plan::Profile& profile) { return profile.host.bandwidth > 0; }
bool has_disk_link(const plan::Profile& profile) { return profile.disk.read > 0 && profile.disk.write > 0; }

/// Returns both sides of a limit as text: rounded for people, or exactly if the rounded texts are equal.
std::pair<std::string, std::string> distinct_bytes(int64_t needed, int64_t there) {
  std::pair<std::string, std::string> texts{readable_bytes(needed), readable_bytes(there)};
  if (texts.first == texts.second) texts = {concat(needed, " bytes"), concat(there, " bytes")};
  return texts;
}

/// The most bytes of a rank in a step: on its device, of host memory, and of those that count for memory.device and
/// memory.host.
struct RankBytes {
  int64_t peak = 0, host = 0, of_device = 0, of_host = 0;
};

RankBytes bytes_of(const StepMemory& memory) {
  const int64_t peak = memory.peak_bytes, host = memory.kinds.host;
  return {.peak = peak,
          .host = host,
          .of_device = memory.budget_bytes > 0 ? memory.budget_bytes : peak,
          .of_host = memory.budget_host_bytes > 0 ? memory.budget_host_bytes : host};
}

/// Returns the bytes between a step of even loads and rows of one document (share 0) and the worst step (1). Each
/// tensor's size is linear in the load, so the peak is convex and the straight line bounds it from above.
RankBytes bytes_at(const RecordedRole& role, double share) {
  const RankBytes even = bytes_of(role.step.memory);
  if (!role.at_worst || share == 0) return even;
  const RankBytes worst = bytes_of(*role.at_worst);
  const auto between = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(std::ceil(share * static_cast<double>(std::max<int64_t>(0, to - from))));
  };
  return {.peak = between(even.peak, worst.peak),
          .host = between(even.host, worst.host),
          .of_device = between(even.of_device, worst.of_device),
          .of_host = between(even.of_host, worst.of_host)};
}

/// On CPUs tensors are memory of the process; on accelerators only the host's part of them is.
int64_t resident_bytes_of(const RankBytes& rank, const plan::Profile& profile) {
  return profile.machine.resident + rank.host + (profile.device.shared ? rank.peak : 0);
}

plan::PredictedRole predicted_role(const RecordedRole& role, const plan::StepParts& seconds, const plan::Costs& costs,
                                   const plan::Profile& profile) {
  const StepMemory& memory = role.step.memory;
  return {.name = role.name,
          .ranks = static_cast<int64_t>(role.ranks.size()),
          .first_rank = role.ranks.front(),
          .peak_bytes = memory.peak_bytes,
          .resident_bytes = resident_bytes_of(bytes_of(memory), profile),
          .fullest = moment_text(role.step),
          .kinds = memory.kinds,
          .panels = role.step.panel_bytes,
          .cache = role.step.cache_bytes,
          .recompute = role.step.recompute,
          .calls = call_sums(role.step),
          .links = links_of(role.step, role.ranks.front(), costs),
          .seconds = seconds};
}

/// The most bytes that the ranks of one node have together.
struct FullestNode {
  int64_t node = 0, bytes = 0;
};

template <class BytesOf>
FullestNode fullest_node(const RecordedRoles& roles, int64_t ranks_per_node, const BytesOf& bytes_of) {
  std::map<int64_t, int64_t> nodes;
  for (const RecordedRole& role : roles)
    for (const int rank : role.ranks) nodes[rank / ranks_per_node] += bytes_of(role);
  FullestNode fullest;
  for (const auto& [node, bytes] : nodes)
    if (bytes > fullest.bytes) fullest = {node, bytes};
  return fullest;
}

/// Returns why the roles do not fit in a step between the even one (share 0) and the worst (1); empty = they fit.
std::string limit_at(double share, const run::MemoryConfig& budgets, const RecordedRoles& roles,
                     const plan::Cluster& cluster) {
  const plan::Profile& profile = cluster.profile();
  if (profile.device.shared) {
    // Steps differ in which rank is the busiest, and processes keep what they freed, so each rank counts as busy.
    const FullestNode node = fullest_node(roles, cluster.ranks_per_node(), [&](const RecordedRole& role) {
      return resident_bytes_of(bytes_at(role, share), profile);
    });
    const int64_t memory = profile.device.memory - profile.device.reserve;
    if (node.bytes > memory) {
      const auto [needed, there] = distinct_bytes(node.bytes, memory);
      return concat("the ranks of node ", node.node, " need ", needed, " together, and the machine has ", there,
                    " besides its reserve");
    }
  }
  const auto fullest_by = [&](int64_t RankBytes::* bytes) {
    return std::max_element(roles.begin(), roles.end(), [&](const RecordedRole& a, const RecordedRole& b) {
      return bytes_at(a, share).*bytes < bytes_at(b, share).*bytes;
    });
  };
  const auto fullest = fullest_by(&RankBytes::peak), counting = fullest_by(&RankBytes::of_device);
  const int64_t peak = bytes_at(*fullest, share).peak, counted = bytes_at(*counting, share).of_device;
  if (!profile.device.shared && peak > cluster.device_bytes()) {
    const auto [needed, there] = distinct_bytes(peak, cluster.device_bytes());
    return concat(fullest->name, ": a rank needs ", needed, ", and a device has ", there, " besides its reserve");
  }
  if (budgets.device > 0 && counted > budgets.device) {
    const auto [needed, there] = distinct_bytes(counted, budgets.device);
    return concat(counting->name, ": a rank needs ", needed, ", and memory.device is ", there);
  }
  const FullestNode host = fullest_node(roles, cluster.ranks_per_node(),
                                        [&](const RecordedRole& role) { return bytes_at(role, share).of_host; });
  if (budgets.host > 0 && host.bytes > budgets.host) {
    const auto [needed, there] = distinct_bytes(host.bytes, budgets.host);
    return concat("the ranks of node ", host.node, " need ", needed, " of host memory together, and memory.host is ",
                  there);
  }
  return "";
}

/// Sets whether the roles fit, up to which load, and why not.
void set_limit(plan::Prediction& prediction, const train::ConfiguredRun& run, const RecordedRoles& roles,
               const plan::Cluster& cluster) {
  const auto limit = [&](double share) { return limit_at(share, run.config.memory, roles, cluster); };
  plan::RankLoads& loads = prediction.rank_load;
  for (const RecordedRole& role : roles) loads.peak_bytes = std::max(loads.peak_bytes, bytes_at(role, 1).peak);
  loads.worst = loads.fitting = worst_rank_load(run);
  prediction.limit = limit(1);
  prediction.fits = prediction.limit.empty();
  if (prediction.fits) return;
  loads.fitting = 0;
  if (std::string even = limit(0); !even.empty()) {
    prediction.limit = std::move(even);
    return;
  }
  if (loads.worst <= 1) {
    prediction.limit = concat("rows of one document fit, and rows of several do not: ", prediction.limit);
    return;
  }
  double fits = 0, fails = 1;  // shares
  constexpr double kStep = 0.005;
  while ((fails - fits) * (loads.worst - 1) > kStep) {
    const double middle = (fits + fails) / 2;
    (limit(middle).empty() ? fits : fails) = middle;
  }
  loads.fitting = std::floor(100 * (1 + fits * (loads.worst - 1))) / 100;
  prediction.limit =
      concat("it fits up to a rank load of ", text_of(loads.fitting, 6), ", and the config permits ",
             text_of(loads.worst, 6), ", at which ", prediction.limit,
             "; an even load is not certain, so limit it with model.experts.capacity, or give the ranks more memory");
}

/// What the model computes for a token, by its own formulas.
struct ModelWork {
  double operations = 0;  // a token
  int64_t tokens = 0;     // of a sample
};

/// Returns nothing if the operations of the model are not known.
std::optional<ModelWork> work_of(const train::ConfiguredRun& run) {
  const auto objective = run.objective();
  const models::ModelShape& shape = run.models.main().shape;
  const tensor::Batch example = objective->example(1);
  const int64_t tokens = objective->tokens(example, shape);
  try {
    return ModelWork{run::costs_of(shape, *objective).sum() / static_cast<double>(tokens), tokens};
  } catch (const models::UnknownCosts&) {
    return std::nullopt;
  }
}

/// Operations of all ranks in a step.
struct ComputedWork {
  double all = 0;
  double attention_forward = 0;  // of attention in forward, without repetitions
};

ComputedWork computed_by(const RecordedRoles& roles) {
  ComputedWork work;
  for (const RecordedRole& role : roles) {
    ComputedWork one;
    for (const StepEvent& event : role.step.list) {
      one.all += event.operations;
      if (event.kind == Kind::Attention && event.phase == static_cast<uint8_t>(comm::Phase::Forward) &&
          !event.recomputed)
        one.attention_forward += event.operations;
    }
    work.all += one.all * static_cast<double>(role.ranks.size());
    work.attention_forward += one.attention_forward * static_cast<double>(role.ranks.size());
  }
  return work;
}

bool is_causal(const models::Task& task) { return task.continues() || task.scores(); }

/// Returns true if every token attends to itself and all tokens before it, in every layer and in no rank twice.
bool is_wholly_causal(const models::ModelShape& shape, const ModelWork& work, double samples, double attention) {
  const double tokens = static_cast<double>(work.tokens), pairs = tokens * (tokens + 1) / 2;
  const double by_formula =
      4 * samples * pairs * static_cast<double>(shape.layers) * static_cast<double>(shape.heads * shape.head_dim);
  return is_causal(shape.task()) && std::abs(attention - by_formula) < 0.5 * 4 * pairs;
}

/// Sets `mfu` and its formula.
void set_mfu(plan::Prediction& prediction, const train::ConfiguredRun& run, const RecordedRoles& roles,
             const ModelWork& work, const plan::Cluster& cluster) {
  const models::ModelShape& shape = run.models.main().shape;
  prediction.flops_per_token = work.operations;
  const auto type = plan::number_type_named(run.config.precision.mode).value_or(plan::NumberType::Fp32);
  const double peak = cluster.peak(type), samples = static_cast<double>(run.config.training.batch_size);
  const double tokens = samples * static_cast<double>(work.tokens);
  const double most = prediction.step_seconds * static_cast<double>(prediction.ranks) * peak;
  if (most <= 0) return;
  prediction.mfu = work.operations * tokens / most;
  const ComputedWork computed = computed_by(roles);
  std::string text = concat(text_of(work.operations, 6), " operations a token (",
                            is_causal(shape.task()) ? "causal" : "visible", " pairs, without recomputation) x ",
                            static_cast<int64_t>(tokens), " tokens / (", text_of(prediction.step_seconds, 6), " s x ",
                            prediction.ranks, prediction.ranks == 1 ? " rank x " : " ranks x ", text_of(peak, 6),
                            " operations/s in ", plan::to_string(type), ")");
  const auto percent = [&](double operations) { return text_of(std::round(1e4 * operations / most) / 100, 6); };
  if (is_wholly_causal(shape, work, samples, computed.attention_forward))
    text +=
        concat("; by all pairs ", percent(all_pairs_operations(shape, work.tokens, work.operations) * tokens), " %");
  text += concat("; as ranks compute it, with recomputation and padding, ", percent(computed.all), " %");
  prediction.mfu_formula = text;
}

bool draws_answers(const std::vector<plan::PredictedRole>& roles) {
  return std::any_of(roles.begin(), roles.end(), [](const plan::PredictedRole& role) { return role.cache > 0; });
}

std::vector<std::string> assumptions_of(const train::ConfiguredRun& run, const plan::Profile& profile, bool draws) {
  const auto& [config, models] = run;
  std::vector<std::string> list;
  if (draws)
    list.emplace_back(
        "drawing answers and scoring them have no predicted time: the seconds of a step are those of the passes before "
        "its first update and of all its updates, with answers of full length");
  if (config.precision.mode == "fp16") list.emplace_back("the loss scale never overflows");
  if (models.main().shape.task().reads_text() && config.data.documents != "joined")
    list.emplace_back("one document a row");
  if (models.main().shape.part<models::MixtureSizes>().experts > 0)
    list.emplace_back("experts are loaded evenly, except where a worst load is named");
  if (models.main().adapter.treatment || models.main().adapter.product)
    list.emplace_back("the MFU counts the model without its adapter, as if all of its parameters trained");
  if (models.size() > 1) list.emplace_back("the MFU counts the main model alone, in one pass of each batch");
  if (profile.device.shared && !profile.products.rates.empty())
    list.emplace_back("products run at the rates of the profile, whose library of products the run chooses too");
  list.emplace_back("the batch of a step is ready when it begins");
  if (config.memory.has_tiers()) {
    const bool lacks_disk = !config.memory.disk.empty() && !has_disk_link(profile);
    if (lacks_disk || !has_host_link(profile))
      list.emplace_back("transfers of tiers whose speed the profile does not have take no time");
  }
  if (config.parallel.ranks() > kRecordedRanks)
    list.emplace_back("ranks that differ only in their place along data, expert and tensor do the same work");
  return list;
}

}  // namespace

double all_pairs_operations(const models::ModelShape& shape, int64_t tokens, double causal) {
  const double added = static_cast<double>(tokens - 1) / 2;  // pairs of a token, on average
  return causal + 12 * added * static_cast<double>(shape.layers) * static_cast<double>(shape.heads * shape.head_dim);
}

plan::Prediction predict_step(const train::ConfiguredRun& run, const RecordedRoles& roles,
                              const plan::Cluster& cluster) {
  const models::ModelShape& shape = run.models.main().shape;
  const RoleCosts costs(cluster, run.config.parallel, roles);
  std::vector<plan::Role> simulated;
  for (const RecordedRole& role : roles)
    simulated.push_back({.name = role.name, .ranks = role.ranks, .events = role.step});
  const plan::StepTimeline timeline = plan::simulate_step(simulated, costs);
  plan::Prediction prediction{.parameters = train::parameter_count(run.models.main()),
                              .vocabulary = shape.vocabulary,
                              .step_seconds = timeline.seconds,
                              .seconds = timeline.parts()};
  set_limit(prediction, run, roles, cluster);
  for (size_t i = 0; i < roles.size(); ++i) {
    prediction.roles.push_back(predicted_role(roles[i], timeline.roles[i].parts, costs, cluster.profile()));
    prediction.ranks += prediction.roles.back().ranks;
    prediction.peak_bytes = std::max(prediction.peak_bytes, prediction.roles.back().peak_bytes);
  }
  const plan::LostTime lost = lost_time(prediction, cluster);
  prediction.goodput = lost.goodput;
  prediction.checkpoint_seconds = lost.checkpoint;
  prediction.checkpoint_interval = lost.checkpoint_interval;
  prediction.assumptions = assumptions_of(run, cluster.profile(), draws_answers(prediction.roles));
  if (const auto work = work_of(run))
    set_mfu(prediction, run, roles, *work, cluster);
  else
    prediction.assumptions.emplace_back("the operations of this model are not known, so there is no MFU");
  return prediction;
}

void add_models(plan::Prediction& prediction, const train::ConfiguredRun& run) {
  prediction.models.clear();
  for (const train::ModelSize& size : train::model_sizes(run))
    prediction.models.push_back({.name = size.name,
                                 .parameters = size.parameters,
                                 .trained = size.trained,
                                 .bytes = size.bytes,
                                 .needs = size.needs});
  const auto add = [&](const char* name, int64_t plan::PredictedRole::* of_rank, const char* held) {
    int64_t bytes = 0;
    for (const plan::PredictedRole& role : prediction.roles) bytes += role.ranks * role.*of_rank;
    if (bytes > 0)
      prediction.models.push_back({.name = name, .bytes = bytes, .needs = {{name, "device", bytes}}, .held = held});
  };
  const auto& panels = run.models.main().panels;
  add("panels", &plan::PredictedRole::panels, panels && panels->in_training ? "always" : "drawing");
  add("cache", &plan::PredictedRole::cache, "drawing");
}

plan::Prediction predict_step(const train::ConfiguredRun& run, const plan::Cluster& cluster) {
  return predict_step(run, record_roles(run, cluster), cluster);
}

void set_ranks(run::Config& config, int64_t ranks) {
  distributed::ParallelConfig& parallel = config.parallel;
  const int64_t fixed = parallel.ranks() / parallel.data;
  if (ranks % fixed != 0 || ranks < 1) {
    std::vector<std::string> axes;
    for (const auto& [name, size] : {std::pair<const char*, int64_t>{"pipeline", parallel.pipeline.size},
                                     {"expert", parallel.expert.size},
                                     {"sequence", parallel.sequence.size},
                                     {"tensor", parallel.tensor.size}})
      if (size > 1) axes.push_back(concat("parallel.", name, " = ", size));
    const int64_t below = ranks / fixed * fixed;
    const std::string nearest =
        below > 0 ? concat("the nearest are ", below, " and ", below + fixed) : concat("the smallest is ", fixed);
    throw Error("plan", concat("the number of ranks must be a multiple of the axes that are fixed (", join(axes),
                               "): got ", ranks, "; ", nearest));
  }
  parallel.data = ranks / fixed;
  if (parallel.ranks_wanted > 0) parallel.ranks_wanted = ranks;  // `ranks` of the file says nothing about this layout
}

void set_device(run::Config& config, const plan::Profile& profile) {
  if (config.run.device == "auto") config.run.device = profile.device.shared ? "cpu" : "cuda";
}

plan::Cluster cluster_of(int64_t ranks, const plan::Profile& profile) {
  const bool is_one_node = profile.device.shared && profile.network.bandwidth <= 0;
  return plan::Cluster(profile, is_one_node ? ranks : std::min(ranks, profile.node.devices));
}

}  // namespace colossal::predict
