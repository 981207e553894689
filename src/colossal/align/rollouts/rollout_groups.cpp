#include "colossal/align/rollouts/rollout_groups.h"

#include <cstring>
#include <utility>
#include <variant>

#include "colossal/base/error.h"

namespace colossal::align {
namespace {

[[noreturn]] void refuse_bytes() {
  throw Error("rollouts",
              "rollouts of another rank or of a checkpoint must be records: got other bytes; the file is "
              "damaged, or of another version");
}

}  // namespace

std::string bytes_of(const std::vector<RolloutRecord>& records) {
  std::string all;
  for (const RolloutRecord& record : records) {
    const std::string bytes = bytes_of(record);
    const uint64_t size = bytes.size();
    all.append(reinterpret_cast<const char*>(&size), sizeof size);
    all += bytes;
  }
  return all;
}

std::vector<RolloutRecord> records_of(std::string_view bytes) {
  std::vector<RolloutRecord> records;
  while (!bytes.empty()) {
    uint64_t size = 0;
    if (bytes.size() < sizeof size) refuse_bytes();
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (bytes.size() < size) refuse_bytes();
    auto record = record_of(bytes.substr(0, size));
    if (!record) refuse_bytes();
    records.push_back(std::move(*record));
    bytes.remove_prefix(size);
  }
  return records;
}

std::string bytes_of(const std::vector<RolloutGroup>& groups) {
  std::vector<RolloutRecord> records;
  for (const RolloutGroup& group : groups) {
    records.emplace_back(PromptRecord{"", group.prompt});
    for (const RolloutAnswer& answer : group.answers) records.emplace_back(AnswerRecord{"", answer});
    for (size_t i = 0; i < group.scores.size(); ++i)
      records.emplace_back(ScoreRecord{
          "", "", {.prompt = group.prompt.index, .number = group.answers.at(i).number, .score = group.scores[i]}});
  }
  return bytes_of(records);
}

std::vector<RolloutGroup> groups_of(std::string_view bytes) {
  std::vector<RolloutGroup> groups;
  for (RolloutRecord& record : records_of(bytes)) {
    if (auto* prompt = std::get_if<PromptRecord>(&record)) {
      groups.push_back({.prompt = std::move(prompt->prompt)});
      continue;
    }
    if (groups.empty()) refuse_bytes();
    if (auto* answer = std::get_if<AnswerRecord>(&record)) groups.back().answers.push_back(std::move(answer->answer));
    if (auto* score = std::get_if<ScoreRecord>(&record)) groups.back().scores.push_back(std::move(score->score.score));
  }
  return groups;
}

std::vector<OptionalScore> values_of(const std::vector<Score>& scores) {
  std::vector<OptionalScore> values;
  values.reserve(scores.size());
  for (const Score& score : scores) values.push_back(score.value);
  return values;
}

}  // namespace colossal::align
