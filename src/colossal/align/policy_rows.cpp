#include "colossal/align/policy_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/comm/group.h"
#include "colossal/data/chats/chat_rows.h"
#include "colossal/distributed/distributed_model.h"

namespace colossal::align {
namespace {

using tensor::Dim;

int64_t longest_of(const std::vector<RolloutGroup>& groups) {
  size_t longest = 0;
  for (const RolloutGroup& group : groups)
    for (const RolloutAnswer& answer : group.answers)
      longest = std::max(longest, group.prompt.ids.size() + answer.ids.size());
  return static_cast<int64_t>(longest);
}

/// Returns whether the tokens of an answer are trained.
bool counts_in(const run::PolicyObjective& objective, const RolloutGroup& group, size_t answer) {
  if (objective.rollout().truncated == "mask" && group.answers[answer].finish_reason != "stop") return false;
  const auto kind = objective.method().advantage;
  const bool is_of_tokens = kind == run::AnswerAdvantage::Returns || kind == run::AnswerAdvantage::Values;
  return !is_of_tokens || group.scores.empty() || group.scores[answer].value.has_value();
}

data::ChatText text_of_row(const RolloutGroup& group, const RolloutAnswer& answer, bool counts) {
  data::ChatText text;
  text.ids.assign(group.prompt.ids.begin(), group.prompt.ids.end());
  text.ids.insert(text.ids.end(), answer.ids.begin(), answer.ids.end());
  text.counts.assign(text.ids.size(), false);
  if (counts) std::fill(text.counts.begin() + static_cast<int64_t>(group.prompt.ids.size()), text.counts.end(), true);
  return text;
}

}  // namespace

PolicyRows policy_rows(const std::vector<RolloutGroup>& groups, const run::PolicyObjective& objective, bool masks) {
  int64_t count = 0;
  for (const RolloutGroup& group : groups) count += static_cast<int64_t>(group.answers.size());
  const int64_t length = objective.row_length(longest_of(groups));
  PolicyRows rows{.batch = data::make_chat_batch(count, length, data::ChatSamples::Answers)};
  rows.sampled = at::zeros({count, length}, at::kDouble);
  auto* sampled = rows.sampled.mutable_data_ptr<double>();
  int64_t row = 0;
  for (const RolloutGroup& group : groups)
    for (size_t i = 0; i < group.answers.size(); ++i, ++row) {
      const RolloutAnswer& answer = group.answers[i];
      const bool counts = !masks || counts_in(objective, group, i);
      const data::ChatText text = text_of_row(group, answer, counts);
      data::fill_chat_row({&text}, /*padding_id=*/0, rows.batch, row);
      // Column t is about token t + 1.
      if (counts)
        std::copy(answer.log_probabilities.begin(), answer.log_probabilities.end(),
                  sampled + row * length + static_cast<int64_t>(group.prompt.ids.size()) - 1);
      rows.drawn += static_cast<int64_t>(answer.ids.size());
      rows.trained += text.size();
    }
  rows.counts = rows.batch.at("labels") != -100;
  rows.batch.add(run::kAnswerCounts, {rows.counts, {Dim::Row, Dim::Other}});
  return rows;
}

std::vector<RolloutGroup> imitated_groups(const run::PolicyObjective& objective, int64_t version) {
  const run::RolloutKeys& keys = objective.rollout();
  const auto tokens = static_cast<size_t>(keys.max_tokens), all = static_cast<size_t>(objective.text_tokens());
  std::vector<RolloutGroup> groups;
  for (int64_t prompt = 0; prompt < keys.prompts; ++prompt) {
    RolloutGroup& group = groups.emplace_back(
        RolloutGroup{.prompt = {.index = prompt, .ids = std::vector<int64_t>(all - tokens), .line = "{}"}});
    for (int64_t number = 0; number < keys.answers; ++number) {
      group.answers.push_back({.prompt = prompt,
                               .number = number,
                               .version = version,
                               .finish_reason = "stop",
                               .ids = std::vector<int64_t>(tokens),
                               .log_probabilities = std::vector<double>(tokens)});
      group.scores.push_back({.value = static_cast<double>((prompt + number) % 2)});
    }
  }
  return groups;
}

bool has_other_version(const std::vector<RolloutGroup>& groups, int64_t version) {
  return std::any_of(groups.begin(), groups.end(), [&](const RolloutGroup& group) {
    return std::any_of(group.answers.begin(), group.answers.end(),
                       [&](const RolloutAnswer& answer) { return answer.version != version; });
  });
}

tensor::Batch own_rows(train::Engine& engine, const tensor::Batch& batch, int64_t update, int64_t batch_size) {
  return engine.replica_rows(batch_size).of(batch.part(update * batch_size, batch_size));
}

at::Tensor gathered_results(train::Engine& engine, const tensor::Batch& batch, int64_t batch_size, int64_t columns,
                            const train::Engine::Loss& result, const std::string& model) {
  const tensor::ReplicaRows own = engine.replica_rows(batch_size);
  const int64_t updates = batch.rows() / batch_size;
  std::vector<at::Tensor> parts;
  bool has_results = false;
  for (int64_t update = 0; update < updates; ++update) {
    const std::vector<at::Tensor> of_update =
        engine.forward(own_rows(engine, batch, update, batch_size), result, model);
    const bool is_known = !of_update.empty() && !engine.device().is_meta();
    has_results = has_results || is_known;
    parts.push_back(is_known ? at::cat(of_update).to(at::kCPU, at::kDouble)
                             : at::zeros({own.count(), columns}, at::kDouble));
  }
  comm::Mesh& mesh = engine.mesh();
  at::Tensor mine = at::stack(parts).contiguous();
  if (comm::Group& stages = mesh.group("pipeline"); stages.size() > 1) {
    at::Tensor first = at::full({1}, has_results ? stages.rank() : stages.size(), at::kLong);
    stages.all_reduce(first, comm::Reduce::Min).wait();
    if (first.item<int64_t>() != stages.rank()) mine.zero_();
    stages.all_reduce(mine, comm::Reduce::Sum).wait();
  }
  comm::Group& replicas = mesh.group(mesh.coordinates().row_axes());
  at::Tensor all = mine;
  if (replicas.size() > 1) {
    all = at::empty({replicas.size() * mine.numel()}, at::kDouble);
    replicas.all_gather(all, mine.flatten()).wait();
  }
  // Row i of replica r in update u is row u B + global(i) of the batch.
  all = all.view({replicas.size(), updates, own.count(), columns});
  const at::Tensor whole = at::empty({batch.rows(), columns}, at::kDouble);
  for (int64_t replica = 0; replica < replicas.size(); ++replica) {
    tensor::ReplicaRows of_replica = own;
    of_replica.replica = replica;
    for (int64_t update = 0; update < updates; ++update)
      for (int64_t row = 0; row < own.count(); ++row)
        whole.select(0, update * batch_size + of_replica.global(row)).copy_(all[replica][update][row]);
  }
  return whole;
}

tensor::Batch with_field(train::Engine& engine, const tensor::Batch& batch, const char* name,
                         const at::Tensor& values) {
  const bool is_exact = engine.parameters().options().dtype == at::kDouble;
  return batch.with(name, {values.to(is_exact ? at::kDouble : at::kFloat), {Dim::Row, Dim::Other}});
}

}  // namespace colossal::align
