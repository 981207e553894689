// The answer to one request of completions or chats, while its choices run.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/serve/generation.h"

namespace colossal::serve {

/// Takes the events of all choices on the replica's thread. Tasks of the exchange decode them and send the answer. The
/// functions Generation::on_event own the answer: if a replica destroys them before the last event, the exchange ends.
class GenerationAnswer : public std::enable_shared_from_this<GenerationAnswer> {
 public:
  /// `service` must outlive the answer.
  GenerationAnswer(Service& service, const http::Request& request, http::Exchange exchange, GenerationJob job);

  /// Adds the choices and begins the answer. Called once, with the request of the constructor.
  /// Errors: http::RequestError 429 if the queue is full.
  void begin(const http::Request& request, std::vector<Generation> generations);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Choice {
    ChoiceStream stream;
    ChoicePart whole{};  // all parts so far, unless the answer is a stream
    int64_t calls = 0;   // number of tool calls that events have sent
    bool has_ended = false;
  };
  struct Heard {
    size_t index;
    infer::Event event;
  };

  // On the replica's thread.
  void on_event(size_t index, const infer::Event& event);
  void measure(size_t index, const infer::Event& event);

  // In tasks of the exchange, one at a time. begin() is the first of them.
  void post_work();
  void work();
  void read(const Heard& heard);
  void send(size_t index, ChoicePart part);
  void finish();
  void fail(const http::ErrorAnswer& error);

  // On any thread.
  void leave(http::Gone why);
  bool end_with(const std::string& reason, std::optional<int64_t> answer_tokens = {});
  void cancel_all();

  Service& service_;
  http::Exchange exchange_;
  const GenerationJob job_;
  const uint64_t number_;
  const Time began_ = std::chrono::steady_clock::now();
  AnswerHead head_;
  int64_t prompt_tokens_ = 0;
  Ticket first_ticket_ = 0;
  std::atomic<bool> has_ended_{false};

  std::optional<http::EventStream> events_{};
  std::vector<Choice> choices_;
  size_t unfinished_ = 0;
  std::string reasons_;  // distinct finish reasons of the choices that have ended, joined by "+"

  struct Measured {
    bool has_begun = false;
    std::optional<Time> last_token{};
  };
  std::mutex mutex_;  // guards the members below
  std::deque<Heard> heard_;
  bool has_task_ = true;  // work() is posted or runs; begin() counts as one
  std::vector<Measured> measured_;
  int64_t found_tokens_ = 0, answer_tokens_ = 0;
  std::optional<double> first_token_seconds_{};
};

}  // namespace colossal::serve
