// The score of an answer by a function of another process, such as the Python program that started the run.
//
//   FunctionScorer scorer(std::move(socket));   // its other end answers each line with a line, see reward_lines.h
#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/base/descriptor.h"
#include "colossal/base/error.h"

namespace colossal::align {

/// A scorer that sends the line of each answer over a socket at once, and takes the lines that come back in any order.
/// A line {"id": .., "error": ".."} in place of a score says that the function failed. There is no timeout, because the
/// function's process is the user's own.
///
/// Errors of take() ("reward"), with the line and Answer::where: the function failed; a line that is not as score_in()
/// demands or above 1 MiB; an id that does not wait; the other end has closed the socket, after which each answer is an
/// error. After another error, lines for forgotten answers are ignored.
class FunctionScorer final : public Scorer {
 public:
  /// `socket` is a connected stream socket. Errors ("reward"): none.
  explicit FunctionScorer(Descriptor socket);

  void add(Answer answer) override;
  std::vector<Scored> take(double seconds) override;
  size_t waiting() const override { return given_.size() + scored_.size() + lost_; }

 private:
  struct Given {
    std::string line, where;
  };
  void send();
  void receive();
  void take_line(const std::string& line);
  void fail(const std::string& what, const std::string& id = {});

  Descriptor socket_;
  std::string unsent_, arrived_;
  std::map<std::string, Given> given_;  // answers without a score, by id
  std::set<std::string> forgotten_;     // ids after an error, whose lines may still arrive
  std::vector<Scored> scored_;
  std::optional<Error> fault_;  // thrown by the next take() that has no scores
  size_t lost_ = 0;             // answers forgotten by it
};

}  // namespace colossal::align
