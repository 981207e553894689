#include "colossal/predict/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/call.h"
#include "colossal/comm/launch/device.h"
#include "colossal/memory/account.h"
#include "colossal/memory/device_meter.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_rule.h"

namespace colossal::predict {
namespace {

using plan::PredictedCalls;
using KindBytes = StepMemory::Kinds;

struct CheckedKind {
  const char* name;
  int64_t KindBytes::* bytes;
};
constexpr std::array<CheckedKind, 6> kCheckedKinds{{{"parameters", &KindBytes::parameters},
                                                    {"gradients", &KindBytes::gradients},
                                                    {"states", &KindBytes::states},
                                                    {"activations", &KindBytes::activations},
                                                    {"buffers", &KindBytes::buffers},
                                                    {"host", &KindBytes::host}}};

/// Adds up calls by group, collective and phase.
class CallSums {
 public:
  void add(const std::string& group, const std::string& collective, const std::string& phase, int64_t calls,
           double bytes) {
    auto& sum = sums_[{group, collective, phase}];
    sum.first += calls;
    sum.second += bytes;
  }
  std::vector<PredictedCalls> list() const {
    std::vector<PredictedCalls> calls;
    for (const auto& [key, sum] : sums_)
      calls.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), sum.first, sum.second});
    return calls;
  }

 private:
  std::map<std::tuple<std::string, std::string, std::string>, std::pair<int64_t, double>> sums_;
};

/// Returns a copy of the rows that the account of this thread counts: a data thread made them.
tensor::Batch counted_copy(const tensor::Batch& rows) {
  return rows.map([](const tensor::Field& field) { return field.tensor.clone(); });
}

bool has_borders(const tensor::Batch& rows) {
  const at::Tensor documents = rows.find("documents");
  return documents.defined() && !ops::is_document_a_row(documents);
}

RankStep rank_step_of(const train::RecordedStep& recorded) {
  return {.calls = call_sums(recorded), .memory = recorded.memory};
}

/// Trains two steps and counts the second. `rows` gets the rows of the second step.
RankStep second_step_of(comm::World& world, const train::ConfiguredRun& run, at::Device device,
                        const std::function<tensor::Batch()>& next, tensor::Batch& rows) {
  const bool counts_kinds = !tensor::is_accelerator(device);
  RankStep step{.has_kinds = counts_kinds};
  memory::Account account;
  const auto engine = train::initialize(world, run.config, run.models, device);
  const std::unique_ptr<train::StepRule> rule = run.models.make_rule(*engine);
  double seconds = 0;
  for (int i = 0; i < 2; ++i) {
    rows = next();
    bool is_first = true;
    const auto taken = [&] {
      if (!std::exchange(is_first, false)) rows = next();
      return counted_copy(rows);
    };
    world.traffic().reset();
    account.reset_peaks();
    if (!counts_kinds) memory::restart_peak(device);
    const Stopwatch watch;
    rule->step(*engine, taken);
    seconds = watch.seconds();
  }
  step.calls = call_sums(world.traffic());
  step.seconds = seconds;
  step.memory = train::step_memory(account.usage());
  if (!counts_kinds) step.memory.peak_bytes = memory::peak_bytes(device);
  step.resident_bytes = memory::peak_bytes(at::kCPU);
  return step;
}

// ---- comparison

/// Adds the rows of one rank to a check.
class RowsOfRank {
 public:
  RowsOfRank(int rank, std::vector<CheckRow>& rows) : rank_(rank), rows_(rows) {}

  void add_calls(const RankStep& predicted, const RankStep& counted, bool experts) {
    using Both = std::array<PredictedCalls, 2>;
    std::map<std::tuple<std::string, std::string, std::string>, Both> all;
    for (size_t side = 0; side < 2; ++side)
      for (const PredictedCalls& c : side == 0 ? predicted.calls : counted.calls)
        all[{c.group, c.collective, c.phase}][side] = c;
    for (const auto& [key, both] : all) {
      const auto& [group, collective, phase] = key;
      const std::string name = concat(group, " ", collective, " ", phase);
      add(name + " calls", static_cast<double>(both[0].calls), static_cast<double>(both[1].calls), true);
      const bool is_uneven = experts && collective == comm::to_string(comm::Collective::AllToAll);
      if (!is_uneven) add(name + " bytes", both[0].bytes, both[1].bytes, true);
    }
  }
  void add_memory(const RankStep& predicted, const RankStep& counted) {
    const auto bytes = [&](const std::string& name, int64_t a, int64_t b) {
      add(name, static_cast<double>(a), static_cast<double>(b), false);
    };
    if (counted.has_kinds)
      for (const auto& [name, kind] : kCheckedKinds)
        bytes(name, predicted.memory.kinds.*kind, counted.memory.kinds.*kind);
    bytes("peak_bytes", predicted.memory.peak_bytes, counted.memory.peak_bytes);
    bytes("resident_bytes", predicted.resident_bytes, counted.resident_bytes);
    add("step_seconds", predicted.seconds, counted.seconds, false);
  }

 private:
  void add(const std::string& name, double predicted, double counted, bool must_equal) {
    rows_.push_back({rank_, name, predicted, counted, must_equal});
  }
  const int rank_;
  std::vector<CheckRow>& rows_;
};

std::string row_text(const CheckRow& row, int name_width) {
  const bool is_seconds = row.name == "step_seconds";
  const int digits = is_seconds ? 4 : 0;
  const double more = row.counted == 0 ? 0 : 100 * (row.predicted / row.counted - 1);
  char text[256];
  std::snprintf(text, sizeof(text), "%6d  %-*.160s  %18.*f  %18.*f  %+8.1f %%\n", row.rank, name_width,
                row.name.c_str(), digits, row.predicted, digits, row.counted, more);
  return text;
}

}  // namespace

void RankStep::fields(Fields& f) {
  f.member("calls", calls);
  f.member("kinds", memory.kinds);
  f.member("has_kinds", has_kinds);
  f.member("peak_bytes", memory.peak_bytes);
  f.member("resident_bytes", resident_bytes);
  f.member("seconds", seconds);
}

void CountedStep::fields(Fields& f) {
  f.member("real", real);
  f.member("recorded", recorded);
}

void CheckRow::fields(Fields& f) {
  f.member("rank", rank);
  f.member("name", name);
  f.count("predicted", predicted);
  f.count("counted", counted);
}

std::vector<PredictedCalls> call_sums(const StepEvents& events) {
  CallSums sums;
  for (const StepEvent& event : events.list)
    if (event.kind == StepEvent::Kind::Call)
      sums.add(events.groups.at(static_cast<size_t>(event.group)).name,
               comm::to_string(static_cast<comm::Collective>(event.collective)),
               comm::to_string(static_cast<comm::Phase>(event.phase)), 1, event.bytes);
  return sums.list();
}

std::vector<PredictedCalls> call_sums(const comm::Traffic& traffic) {
  CallSums sums;
  for (const auto& [key, count] : traffic.entries())
    sums.add(std::get<0>(key), std::get<1>(key), comm::to_string(std::get<2>(key)), count.calls, count.bytes);
  return sums.list();
}

CountedStep count_step(comm::World& world, const train::ConfiguredRun& run, const std::function<tensor::Batch()>& next,
                       std::optional<at::Device> device) {
  if (!device) device = comm::choose_device(run.config.run.device, world.local_rank());
  CountedStep step;
  tensor::Batch rows;
  step.real = second_step_of(world, run, *device, next, rows);
  if (has_borders(rows)) step.recorded = rank_step_of(train::record_step(run, world.rank(), rows));
  return step;
}

std::vector<CountedStep> gather_steps(comm::Group& ranks, const CountedStep& own) {
  std::vector<CountedStep> steps;
  for (const std::string& text : comm::gather_text(ranks, at::kCPU, 0, to_json_object(own).dump()))
    steps.push_back(read_stored<CountedStep>(parse_json_object(text, "the counted step of a rank", "plan"), "plan"));
  return steps;
}

std::vector<RankStep> steps_of(const RecordedRoles& roles, const plan::Prediction& prediction) {
  require(roles.size() == prediction.roles.size(), "plan", "a prediction must have the roles that were recorded: got ",
          prediction.roles.size(), " of ", roles.size(), "; predict from these roles");
  std::map<int, RankStep> steps;
  for (size_t i = 0; i < roles.size(); ++i) {
    const plan::PredictedRole& role = prediction.roles[i];
    const RankStep step{.calls = role.calls,
                        .memory = {.kinds = role.kinds, .peak_bytes = role.peak_bytes},
                        .resident_bytes = role.resident_bytes,
                        .seconds = prediction.step_seconds};
    for (const int rank : roles[i].ranks)
      require(steps.emplace(rank, step).second, "plan", "a rank must have one role: rank ", rank, " has several");
  }
  std::vector<RankStep> list;
  for (auto& [rank, step] : steps) {
    require(rank == static_cast<int>(list.size()), "plan", "every rank must have a role: rank ", list.size(),
            " has none; record all ranks, of which there may be ", kRecordedRanks);
    list.push_back(std::move(step));
  }
  return list;
}

bool CheckRow::differs() const { return must_equal && std::abs(predicted - counted) >= 0.5; }

bool Check::differs() const {
  return std::any_of(rows.begin(), rows.end(), [](const CheckRow& row) { return row.differs(); });
}

Check compare(std::vector<RankStep> predicted, const std::vector<CountedStep>& counted, bool experts) {
  require(predicted.size() == counted.size(), "plan", "the ranks of a run and of its prediction must be the same: got ",
          counted.size(), " and ", predicted.size());
  Check check;
  for (size_t rank = 0; rank < counted.size(); ++rank) {
    RankStep& mine = predicted[rank];
    if (const auto& recorded = counted[rank].recorded) mine.calls = recorded->calls, mine.memory = recorded->memory;
    RowsOfRank rows(static_cast<int>(rank), check.rows);
    rows.add_calls(mine, counted[rank].real, experts);
    rows.add_memory(mine, counted[rank].real);
  }
  return check;
}

std::string to_json(const Check& check) { return to_json_list(check.rows).dump(); }

std::string to_json(const plan::Prediction& prediction, const Check& check) {
  nlohmann::ordered_json object = to_json_object(prediction);
  object["checks"] = to_json_list(check.rows);
  return json_line(object);
}

std::string to_text(const Check& check) {
  size_t width = 14, equal = 0;
  const auto is_shown = [](const CheckRow& row) { return !row.must_equal || row.differs(); };
  for (const CheckRow& row : check.rows) {
    if (is_shown(row)) width = std::max(width, std::min<size_t>(row.name.size(), 60));
    if (!is_shown(row)) ++equal;
  }
  char head[256];
  std::snprintf(head, sizeof(head), "%6s  %-*s  %18s  %18s  %10s\n", "rank", static_cast<int>(width), "number",
                "predicted", "counted", "difference");
  std::string text = head;
  for (const CheckRow& row : check.rows)
    if (is_shown(row)) text += row_text(row, static_cast<int>(width));
  return text + concat(equal, " numbers of calls and of bytes sent are equal",
                       check.differs() ? "; those in the table differ\n" : ", which is all of them\n");
}

}  // namespace colossal::predict
