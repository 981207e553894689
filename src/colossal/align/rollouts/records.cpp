#include "colossal/align/rollouts/records.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "colossal/align/rollouts/appended_records.h"
#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal::align {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepStart = "step-", kRemovedStart = ".step-", kFileEnd = ".records";

std::string padded(int64_t number, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*lld", digits, static_cast<long long>(number));
  return text;
}

std::string step_folder(const std::string& folder, int64_t step) {
  return concat(folder, "/", kStepStart, padded(step, 6));
}

/// A file of a step: "start-0002-rank-00001.records".
struct RecordsFile {
  int64_t start = 0, rank = 0;
  std::string path{};

  auto operator<=>(const RecordsFile&) const = default;
};

std::string file_name(int64_t start, int64_t rank) {
  return concat("start-", padded(start, 4), "-rank-", padded(rank, 5), kFileEnd);
}

/// Takes `word` and a number from the start of `name`. Returns false if they are not there.
bool take_number(std::string_view& name, std::string_view word, int64_t& number) {
  if (!name.starts_with(word)) return false;
  name.remove_prefix(word.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return false;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  return true;
}

/// Returns the names in a folder; none if it does not exist.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  require(!error || error == std::errc::no_such_file_or_directory, "rollouts", "cannot read the folder ", folder, ": ",
          error.message());
  return names;
}

/// Returns the files of a step in the order of the starts of the run.
std::vector<RecordsFile> files_of_step(const std::string& folder) {
  std::vector<RecordsFile> files;
  for (const std::string& name : names_in(folder)) {
    RecordsFile file{.path = folder + "/" + name};
    std::string_view rest = name;
    if (take_number(rest, "start-", file.start) && take_number(rest, "-rank-", file.rank) && rest == kFileEnd)
      files.push_back(file);
  }
  std::sort(files.begin(), files.end());
  return files;
}

StoredRollouts read_step(const std::string& folder) {
  StoredRollouts stored;
  const auto take = [&](RolloutRecord record) {
    if (auto* prompt = std::get_if<PromptRecord>(&record)) {
      stored.draws = prompt->draws;
      stored.prompts.insert_or_assign(prompt->prompt.index, std::move(*prompt));
    } else if (auto* answer = std::get_if<AnswerRecord>(&record)) {
      const StoredRollouts::Key key{answer->answer.prompt, answer->answer.number, answer->digest};
      stored.answers.insert_or_assign(key, std::move(answer->answer));
    } else if (auto* score = std::get_if<ScoreRecord>(&record)) {
      const StoredRollouts::Key key{score->score.prompt, score->score.number, score->digest};
      stored.scores.insert_or_assign(key, std::move(*score));
    }
  };
  for (const RecordsFile& file : files_of_step(folder)) {
    stored.starts = file.start;
    read_appended(file.path, [&](std::string_view bytes, int64_t byte) {
      auto record = record_of(bytes);
      require(record.has_value(), "rollouts", file.path,
              " must have prompts, answers and scores: got another record at byte ", byte,
              "; delete the file, and a resumed run draws its answers again");
      take(std::move(*record));
    });
  }
  return stored;
}

/// Returns what a step has that a run may remove meanwhile; nothing if it has done so. A reader of such a folder meets
/// missing files, or an incomplete list of them.
StoredRollouts read_removable_step(const std::string& folder) {
  const auto is_removed = [&] {
    std::error_code ignored;
    return !fs::is_directory(folder, ignored);
  };
  try {
    StoredRollouts stored = read_step(folder);
    return is_removed() ? StoredRollouts() : std::move(stored);
  } catch (const Error&) {
    if (!is_removed()) throw;
    return {};
  }
}

/// Removes the folders of steps, and those that a killed call has left. A folder is renamed before it is emptied, so
/// readers never see a part of a step.
void remove_steps(const std::string& folder, const std::vector<int64_t>& steps) {
  const auto remove_renamed = [&] {
    for (const std::string& name : names_in(folder))
      if (name.starts_with(kRemovedStart)) fs::remove_all(folder + "/" + name);
  };
  remove_renamed();
  if (steps.empty()) return;
  for (const int64_t step : steps)
    fs::rename(step_folder(folder, step), concat(folder, "/", kRemovedStart, padded(step, 6)));
  remove_renamed();
}

/// Returns the range of the answers to a prompt.
auto range_of(auto& answers, int64_t prompt) {
  return std::pair{answers.lower_bound({prompt, 0, ""}), answers.lower_bound({prompt + 1, 0, ""})};
}

/// Returns the prompt among those that were begun.
auto& begun_in(auto& prompts, int64_t prompt) {
  const auto found = prompts.find(prompt);
  require(found != prompts.end(), "rollouts", "prompt ", prompt,
          " must be begun before its answers; call RolloutStep::begin()");
  return found->second;
}

}  // namespace

std::string rollout_id(int64_t step, int64_t prompt, int64_t number) { return concat(step, "/", prompt, "/", number); }

std::string digest_of(const nlohmann::json& value) {
  try {
    return checksum(value.dump());
  } catch (const nlohmann::json::exception& error) {
    throw Error("rollouts", concat("a digest needs texts in UTF-8: got ", error.what()));
  }
}

RolloutStep::RolloutStep(RolloutStep&&) noexcept = default;
RolloutStep::~RolloutStep() = default;

RolloutStep::RolloutStep(std::string folder, int64_t step, int rank, RolloutDigests digests, const Log& log)
    : folder_(std::move(folder)),
      step_(step),
      rank_(rank),
      digests_(std::move(digests)),
      log_(&log),
      stored_(read_step(folder_)) {}

void RolloutStep::begin(RolloutPrompt prompt) {
  const int64_t index = prompt.index;
  Begun& begun = begun_.insert_or_assign(index, Begun{.record = {digests_.draws, std::move(prompt)}}).first->second;
  begun.digest = begun.record.digest();
  const auto newest = stored_.prompts.find(index);
  const bool is_known = newest != stored_.prompts.end();
  begun.is_stored = is_known && newest->second.digest() == begun.digest;
  const auto [first, last] = range_of(stored_.answers, index);
  const bool has_answers =
      std::any_of(first, last, [&](const auto& entry) { return std::get<2>(entry.first) == begun.digest; });
  // Readers take the newest prompt, and add() may never be called, because the answers are there.
  if (!begun.is_stored && (is_known || has_answers)) store(begun);
}

const RolloutAnswer* RolloutStep::answer(int64_t prompt, int64_t number) const {
  const auto found = stored_.answers.find({prompt, number, begun_in(begun_, prompt).digest});
  return found == stored_.answers.end() ? nullptr : &found->second;
}

const Score* RolloutStep::score(int64_t prompt, int64_t number) const {
  const auto found = stored_.scores.find({prompt, number, begun_in(begun_, prompt).digest});
  if (found == stored_.scores.end() || found->second.scores != digests_.scores) return nullptr;
  return &found->second.score.score;
}

void RolloutStep::add(RolloutAnswer answer) {
  Begun& prompt = begun_in(begun_, answer.prompt);
  require(answer.number >= 0, "rollouts", "the number of an answer must be 0 or more: got ", answer.number);
  require(answer.ids.size() == answer.log_probabilities.size(), "rollouts",
          "an answer must have a log-probability for each token: got ", answer.log_probabilities.size(), " for ",
          answer.ids.size());
  if (!prompt.is_stored) store(prompt);
  const StoredRollouts::Key key{answer.prompt, answer.number, prompt.digest};
  RolloutRecord record = AnswerRecord{prompt.digest, std::move(answer)};
  store(record);
  stored_.answers.insert_or_assign(key, std::move(std::get<AnswerRecord>(record).answer));
}

void RolloutStep::add(RolloutScore score) {
  const std::string& digest = begun_in(begun_, score.prompt).digest;
  const StoredRollouts::Key key{score.prompt, score.number, digest};
  RolloutRecord record = ScoreRecord{digest, digests_.scores, std::move(score)};
  store(record);
  stored_.scores.insert_or_assign(key, std::move(std::get<ScoreRecord>(record)));
}

std::string RolloutStep::path() const { return file_ ? file_->path() : folder_; }

void RolloutStep::store(Begun& prompt) {
  prompt.is_stored = store(RolloutRecord(prompt.record));
  if (prompt.is_stored) stored_.prompts.insert_or_assign(prompt.record.prompt.index, prompt.record);
}

/// Returns false, after a warning, if the record cannot be written.
bool RolloutStep::store(const RolloutRecord& record) {
  try {
    if (!file_) {
      create_folder(folder_);
      // A file of the next number exists if this rank opened the step twice.
      for (int64_t start = stored_.starts + 1; !file_; ++start)
        file_ = AppendedRecords::unless_exists(concat(folder_, "/", file_name(start, rank_)));
    }
    file_->append(bytes_of(record));
    return true;
  } catch (const Error& error) {
    if (!std::exchange(has_warned_, true))
      log_->warning("rollouts of step ", step_, " are not stored: ", error.message(),
                    "; free some space; the run continues, but a resumed run draws or scores these answers again");
    return false;
  }
}

RolloutRecords::RolloutRecords(std::string folder, int rank, const Log& log)
    : folder_(std::move(folder)), rank_(rank), log_(&log) {}

RolloutStep RolloutRecords::open(int64_t step, RolloutDigests digests) const {
  return {step_folder(folder_, step), step, rank_, std::move(digests), *log_};
}

void RolloutRecords::remove_before(int64_t step) const {
  try {
    std::vector<int64_t> steps = rollout_steps(folder_);
    steps.erase(std::lower_bound(steps.begin(), steps.end(), step), steps.end());
    remove_steps(folder_, steps);
  } catch (const std::exception& error) {
    log_->warning("rollouts before step ", step, " cannot be removed: ", plain_message(error),
                  "; the next step tries again");
  }
}

std::vector<int64_t> rollout_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder)) {
    std::string_view rest = name;
    int64_t step = 0;
    if (take_number(rest, kStepStart, step) && folder + "/" + name == step_folder(folder, step)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<StoredGroup> read_rollouts(const std::string& folder, int64_t step) {
  StoredRollouts stored = read_removable_step(step_folder(folder, step));
  std::vector<StoredGroup> groups;
  for (auto& [index, record] : stored.prompts) {
    if (record.draws != stored.draws) continue;  // the last start of the run has drawn the step with fewer prompts
    const std::string digest = record.digest();
    StoredGroup& group = groups.emplace_back(StoredGroup{std::move(record.prompt), {}});
    const auto [first, last] = range_of(stored.answers, index);
    for (auto at = first; at != last; ++at) {
      if (std::get<2>(at->first) != digest) continue;
      StoredAnswer& one = group.answers.emplace_back(StoredAnswer{std::move(at->second), std::nullopt});
      const auto score = stored.scores.find(at->first);
      if (score != stored.scores.end()) one.score = std::move(score->second.score.score);
    }
  }
  return groups;
}

}  // namespace colossal::align
