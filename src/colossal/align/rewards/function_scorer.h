// The score of an answer by a function of another process, such as the Python program that started the run.
//
//   FunctionScorer scorer(std::move(socket));   // its other end answers each line with a line, see reward_lines.h
#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/align/rewards/waiting_scores.h"
#include "colossal/base/descriptor.h"

namespace colossal::align {

/// A scorer that sends the line of each answer over a socket at once, and takes the lines that come back in any order.
/// A line {"id": .., "error": ".."} in place of a score says that the function failed. There is no timeout, because the
/// function's process is the user's own.
///
/// Errors of take() ("reward"), with the line and Answer::where: the function failed; a line that is not as score_in()
/// demands or above 1 MiB; an id that does not wait; the other end has closed the socket. After a line without an id,
/// a line that is too long or the end of the other process, each answer is an error. After other errors the next add()
/// begins anew, and lines for forgotten answers are ignored.
class FunctionScorer final : public Scorer {
 public:
  /// `socket` is a connected stream socket. If `null_on_fault` is true, an answer for which the function failed or gave
  /// a wrong line has no score, and Score::is_fault is true. Errors ("reward"): no socket.
  explicit FunctionScorer(Descriptor socket, bool null_on_fault = false);

  void add(Answer answer) override;
  std::vector<Scored> take(double seconds) override;
  void forget() override;
  size_t waiting() const override { return waiting_.count(); }

 private:
  struct Given {
    std::string line, where;
    bool is_sent = false;  // to its end
  };
  void send();
  void receive();
  void take_line(const std::string& line);
  void fail(const std::string& id, const std::string& what);
  void end(const std::string& what);
  void forget_given();

  Descriptor socket_;
  const bool null_on_fault_;
  std::map<std::string, Given> given_;  // answers without a score, by id
  std::deque<std::string> unsent_;      // ids of those whose lines were not sent to their ends
  size_t sent_ = 0;                     // bytes of the first of these lines that were sent
  std::string rest_;                    // the rest of the line of a forgotten answer, which is sent first
  std::string arrived_;                 // the start of a line
  std::map<std::string, size_t> late_;  // numbers of lines that will still arrive for forgotten answers, by id
  std::string ended_;                   // why the function cannot be called any more; empty = it can
  WaitingScores waiting_;
};

}  // namespace colossal::align
