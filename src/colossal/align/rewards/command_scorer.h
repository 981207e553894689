// The score of an answer by a program of the user.
//
//   for line in sys.stdin:                                                  # score.py
//       answer = json.loads(line)
//       right = answer["completion"].strip() == answer["answer"]
//       print(json.dumps({"id": answer["id"], "score": float(right)}), flush=True)
#pragma once
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/align/rewards/waiting_scores.h"
#include "colossal/base/error.h"

namespace colossal::align {

/// The command of a CommandScorer, and what it allows it.
struct RewardCommand {
  std::vector<std::string> command{};  ///< a program and its arguments, which no shell reads
  int workers = 2;                     ///< number of processes that run it, each of which has one answer at a time
  double timeout = 60;                 ///< seconds that an answer may take; then its worker and its children are killed
  int retries = 2;                     ///< number of further tries after a timeout, each with a new worker
  /// false = a fault is an error; true = the answer has no score, Score::is_fault is true, and a new worker goes on
  bool null_on_fault = false;
};

/// A scorer that starts a command once in several processes. A process gets one line of JSON for each answer at its
/// standard input and prints one for it to its standard output (reward_lines.h). Its standard error is for messages;
/// the last of them are a part of errors. Python does not buffer its output (PYTHONUNBUFFERED). The processes end with
/// this object: idle ones get the end of their input and half a second. They also end if this process dies.
///
/// While the caller pauses each worker completes its answer; it gets the next by add() or take(). If a part of a line
/// has waited in a pipe during a pause, the time of that answer starts again.
///
/// A process that does not read, floods its output or hangs delays nothing but its own answer.
///
/// Errors of take() ("reward"), with the command, the line, the end of the process's standard error and Answer::where:
/// the process ended or closed its output; a line that is not as score_in() demands or above 1 MiB (kMaxRewardLine); an
/// id that it was not asked for, or has answered before; an answer that took longer than `timeout` in all tries. All
/// processes are then killed, and the next add() begins anew. With `null_on_fault` only the worker is replaced.
/// In both cases a command that cannot be started is an error.
class CommandScorer final : public Scorer {
 public:
  /// Starts the workers. Errors ("reward"): no command, a command that cannot be started; workers below 1, retries
  /// below 0, a timeout that is not above 0.
  explicit CommandScorer(RewardCommand command);
  ~CommandScorer() override;

  void add(Answer answer) override;
  std::vector<Scored> take(double seconds) override;
  void forget() override;
  size_t waiting() const override { return waiting_.count(); }

 private:
  struct Task {
    std::string id, line, where;
    int tries = 0;
  };
  struct Worker;

  void start(Worker& worker) const;
  void hand_out();
  void wait(double end) const;
  void exchange(Worker& worker);
  void take_line(Worker& worker, const std::string& line);
  void take_timeout(Worker& worker);
  void fail(Worker& worker, const std::string& what);
  void fail_all(Error error);
  size_t running() const;
  std::string name() const;

  const RewardCommand command_;
  std::vector<Worker> workers_;
  std::deque<Task> queue_;
  WaitingScores waiting_;
};

}  // namespace colossal::align
