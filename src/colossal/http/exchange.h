// The answer to one request, which any thread may give at any time.
//
//   void complete(const Request& request, Exchange exchange) {   // a handler
//     exchange.when_gone([](Gone) { ... });                      // cancel the work
//     EventStream events = exchange.begin_events();              // or exchange.answer({.body = "{}"})
//     engine.add(..., [events](...) mutable { events.send("{...}"); });
//   }
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "colossal/http/error_answer.h"
#include "colossal/http/message.h"

namespace colossal::http {

class ExchangeHandle;

/// Why a client does not get its (whole) answer.
enum class Gone {
  kLeft,    ///< it closed its connection or its sending side
  kUnread,  ///< it read less than max_unread bytes in unread_timeout, or more of a stream waited
  kStopped  ///< the server stopped; the answer ends with an error
};

/// A stream of server-sent events. Copies are handles of the same stream. If the last handle is destroyed before end(),
/// the connection is closed, so that the client sees that the stream is not complete.
/// Thread safety: any thread may call the members. None of them blocks.
class EventStream {
 public:
  explicit EventStream(std::shared_ptr<ExchangeHandle> handle) : handle_(std::move(handle)) {}

  /// Queues one event, `data: TEXT`, with a `data:` line for each line of the text. Returns false if the client is gone
  /// or the stream has ended; the event is then dropped.
  bool send(std::string_view text);
  /// Queues one comment line, which clients skip. Returns as send(). Line breaks in the text become blanks.
  bool comment(std::string_view text);
  /// Ends the stream. Later calls do nothing.
  void end();
  bool is_gone() const;
  /// Returns the bytes that are queued and not yet given to the operating system.
  int64_t unread_bytes() const;

 private:
  std::shared_ptr<ExchangeHandle> handle_;
};

/// The answer to one request. Copies are handles of the same answer. If the last handle is destroyed before an answer
/// was given, the client gets 500.
/// Thread safety: any thread may call the members. None of them blocks.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<ExchangeHandle> handle) : handle_(std::move(handle)) {}

  /// Answers the request. Does nothing if an answer was given or the client is gone.
  void answer(Response response);
  void answer(const ErrorAnswer& error) { answer(error_response(error)); }
  /// Answers with status 200 and a stream of events. The stream sends `: waiting` after some seconds of silence. If the
  /// client is gone, the stream drops its events. Errors ("http"): an answer was given.
  EventStream begin_events();
  bool is_gone() const;
  /// Sets the function that is called once if the client is gone before the answer has ended; at once if it already is.
  /// Otherwise the server's I/O thread calls it, so it must be quick and must not throw. The function is destroyed when
  /// the answer has ended, so it may hold a handle of this exchange.
  void when_gone(std::function<void(Gone)> callback);
  /// Runs a task on one of the server's worker threads. Tasks of one exchange run one at a time, in their order. An
  /// exception of a task is answered as an exception of a handler is. Tasks are dropped after the server has stopped.
  void post(std::function<void()> task);
  /// Runs a task that may take seconds where the handlers of large requests run: in turns of clients, so that it delays
  /// neither streams nor small requests. An exception of the task is answered as an exception of a handler is. The task
  /// is dropped after the server has stopped.
  void post_long(std::function<void()> task);

 private:
  std::shared_ptr<ExchangeHandle> handle_;
};

}  // namespace colossal::http
