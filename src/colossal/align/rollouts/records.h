// The rollouts of a run, kept in its folder: each answer is stored when it is complete, each score when it is known.
//
//   const align::RolloutRecords records(run.rollouts(), /*rank=*/0, log);
//   align::RolloutStep step = records.open(12, {.draws = align::digest_of(draws), .scores = align::digest_of(scores)});
//   step.begin(prompt);                                       // prompt.index is 3
//   for (int64_t number = 0; number < 8; ++number) {
//     if (!step.answer(3, number)) step.add(draw(prompt, number));    // a run that was killed has drawn some
//     const align::RolloutAnswer& answer = *step.answer(3, number);
//     if (!step.score(3, number)) step.add(align::RolloutScore{3, number, rate(prompt, answer)});
//   }
//   records.remove_before(8);                                 // keeps the last 5 steps
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "colossal/align/rollouts/rollout_record.h"
#include "colossal/base/json.h"
#include "colossal/base/log.h"

namespace colossal::align {

class AppendedRecords;

/// Returns the name of an answer in the lines of scorers and commands: "12/3/5" is answer 5 to prompt 3 of step 12.
std::string rollout_id(int64_t step, int64_t prompt, int64_t number);

/// Digests of what a step's records depend on. A stored record of another digest is ignored.
struct RolloutDigests {
  /// Digest of what all draws of the step depend on, except for the prompts, which the records compare: the weights,
  /// the seed, the keys of the sampler, the arithmetic.
  std::string draws;
  std::string scores;  ///< digest of what scores depend on in addition to the answers, such as the keys of [reward]
};

/// Returns the XXH3-128 of a JSON value in hex. The order of the members of objects has no effect. Numbers count with
/// all their bits, except that those without a spelling in JSON (NaN, infinities) are null. Errors ("rollouts"): a text
/// that is not UTF-8.
std::string digest_of(const nlohmann::json& value);

/// The records of one step, which any ranks and starts of the run have written.
struct StoredRollouts {
  /// Index of a prompt, number of an answer, PromptRecord::digest().
  using Key = std::tuple<int64_t, int64_t, std::string>;
  std::map<int64_t, PromptRecord> prompts;  ///< the newest of each index
  std::map<Key, RolloutAnswer> answers;
  std::map<Key, ScoreRecord> scores;  ///< the newest of each answer
  std::string draws;                  ///< RolloutDigests::draws of the newest prompt
  int64_t starts = 0;                 ///< the largest number of a file
};

/// The records of one step, as one rank reads and writes them.
///
/// Kills:     an answer or score that add() has stored is found by a run that resumes, in any layout. A record that a
///            kill has cut off is drawn or computed again.
/// Full disk: add() keeps the record in memory, and a warning in the log says why it is not stored; the records before
///            and after it are.
/// Memory:    all records of the step that the folder had in open(), and those that were added.
/// Cost:      a system call for each record. Nothing is flushed to the disk, so a power failure loses the last records.
/// Communication: none. A rank sees what other ranks stored before its open().
/// Thread safety: none.
class RolloutStep {
 public:
  RolloutStep(RolloutStep&&) noexcept;
  ~RolloutStep();

  /// Names a prompt, before the calls for its answers. If the files have another prompt of this index, its answers are
  /// ignored. A rank that only scores answers names their prompts too. The prompt is stored with its first answer.
  void begin(RolloutPrompt prompt);
  /// Returns an answer of a prompt that was begun; null = it has to be drawn. It is valid until this object ends.
  const RolloutAnswer* answer(int64_t prompt, int64_t number) const;
  /// Returns the score of an answer of a prompt that was begun; null = it has to be computed. It is valid until the
  /// next add() of a score.
  const Score* score(int64_t prompt, int64_t number) const;
  /// Stores an answer or a score of a prompt that was begun; a score may belong to an answer of another rank.
  /// Errors ("rollouts"): a prompt that was not begun, a negative number, another number of log-probabilities than ids.
  void add(RolloutAnswer answer);
  void add(RolloutScore score);
  /// Returns the file to which this rank writes, for messages; before its first record the folder of the step.
  std::string path() const;

 private:
  friend class RolloutRecords;
  struct Begun {
    PromptRecord record;
    std::string digest;
    bool is_stored = false;
  };
  RolloutStep(std::string folder, int64_t step, int rank, RolloutDigests digests, const Log& log);
  bool store(const RolloutRecord& record);
  void store(Begun& prompt);

  std::string folder_;
  int64_t step_;
  int rank_;
  RolloutDigests digests_;
  const Log* log_;
  StoredRollouts stored_;
  std::map<int64_t, Begun> begun_;
  std::unique_ptr<AppendedRecords> file_;
  bool has_warned_ = false;
};

/// The folder of a run's rollouts. Each step has a folder, and in it each rank has a file for each start of the run. So
/// ranks never share a file, and no start appends to what an earlier one has left. If a rank opens a step several times
/// in one start, each RolloutStep has a file of its own, too.
class RolloutRecords {
 public:
  /// `folder` is RunFolder::rollouts(), and is made by the first record. `log` must outlive this object and its steps.
  RolloutRecords(std::string folder, int rank, const Log& log);

  /// Reads the records of a step. Errors ("file"): a file that cannot be read. Errors ("rollouts"): damage that is not
  /// at the end of a file; the message has file, byte and remedy.
  RolloutStep open(int64_t step, RolloutDigests digests) const;
  /// Removes the records of all steps before `step`. One rank calls it, when no rank needs them. A folder that cannot
  /// be removed is a warning. A run that resumes from a checkpoint before `step` draws these answers again.
  void remove_before(int64_t step) const;

 private:
  std::string folder_;
  int rank_;
  const Log* log_;
};

/// An answer with its score.
struct StoredAnswer {
  RolloutAnswer answer;
  std::optional<Score> score;  ///< none = it was not scored yet
};

/// A prompt with the answers to it, in the order of their numbers.
struct StoredGroup {
  RolloutPrompt prompt;
  std::vector<StoredAnswer> answers;
};

/// Returns the steps of which a folder (RunFolder::rollouts()) has records, in ascending order; empty if there is no
/// such folder.
std::vector<int64_t> rollout_steps(const std::string& folder);

/// Returns the prompts of a step in the order of their indices. If the run drew the step several times with other
/// digests, these are the prompts of the last time. The result does not depend on which rank stored what, or when.
/// Returns nothing if there is no such step, also if the run removes it during the call (remove_before()).
/// Errors: those of RolloutRecords::open().
std::vector<StoredGroup> read_rollouts(const std::string& folder, int64_t step);

}  // namespace colossal::align
