// The state that the handles of an answer share with the connection that sends it.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "colossal/http/error_answer.h"
#include "colossal/http/exchange.h"
#include "colossal/http/worker_pool.h"

namespace colossal::http {

/// The threads of a server.
struct ExchangePools {
  std::shared_ptr<WorkerPool> handlers;  ///< calls the handlers of new requests, and runs long tasks of exchanges
  std::shared_ptr<WorkerPool> tasks;     ///< runs what exchanges post, so that streams do not wait for new requests
};

/// Facts of a request that decide the form of its answer.
struct AnswerForm {
  std::string id{};          ///< Request::id
  std::string client{};      ///< client_of() the request, for the turn of a long task
  bool is_head = false;      ///< the method is HEAD: no body is sent
  bool is_http_1_0 = false;  ///< no chunks: the end of the connection ends a stream
  bool keep_alive = false;   ///< the connection is open for further requests after the answer
};

/// Queues the bytes of one answer. Handles add to the queue from any thread; the connection takes from it on the I/O
/// thread. No function holds the lock while it calls a callback.
class ExchangeState : public std::enable_shared_from_this<ExchangeState> {
 public:
  /// `wake` makes the I/O thread call take(). It is called under the lock and must not block or throw.
  ExchangeState(AnswerForm form, ExchangePools pools, std::function<void()> wake);

  // Called by handles.
  void answer(const Response& response);
  void answer_exception(const std::exception& error);
  void begin_events();
  bool write_events(std::string_view bytes);  ///< complete lines of a stream of events
  void end_events();
  void abandon();  ///< the last handle is gone
  bool is_gone() const;
  void when_gone(std::function<void(Gone)> callback);
  void post(std::function<void()> task);
  void post_long(std::function<void()> task);
  int64_t unread_bytes() const;

  // Called by the connection.
  struct Output {
    std::string bytes{};
    bool has_ended = false;  ///< nothing follows the bytes
    bool is_broken = false;  ///< the connection must be closed, so that the client sees that the answer is incomplete
    bool is_stream = false;  ///< a stream of events has begun
    int status = 0;          ///< 0 = no answer yet
  };
  Output take();
  int64_t look();  ///< returns unread_bytes(), and wakes the I/O thread again for bytes that are added later
  void wrote(size_t bytes);
  /// The client is gone: drops the queue and calls the callback.
  void leave(Gone why);
  /// The server stops: ends an answer that has not ended with an error, 503 or an event, and calls the callback.
  void stop();
  /// The answer was sent. Handles no longer reach the connection.
  void detach();
  bool keeps_alive() const;

 private:
  void add(std::string_view bytes);  ///< with the lock held
  std::string head_of(int status, const std::string& content_type, const Headers& headers, std::optional<size_t> size);
  // With the lock held.
  void answer_locked(const Response& response);
  bool write_locked(std::string_view bytes);
  void end_locked();
  void begin_turn();  ///< posts run_next_task()
  void run_next_task();
  void drop_tasks();

  const AnswerForm form_;
  const ExchangePools pools_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  bool is_awake_ = false;  ///< wake_ was called since the last take()
  Output output_;
  int64_t unread_ = 0;
  bool keep_alive_;
  std::optional<Gone> gone_;
  std::function<void(Gone)> when_gone_;
  std::deque<std::function<void()>> tasks_;
  bool runs_task_ = false;
};

/// The state that all handles of an exchange own. It ends with the last handle.
class ExchangeHandle {
 public:
  explicit ExchangeHandle(std::shared_ptr<ExchangeState> shared) : state(std::move(shared)) {}
  ~ExchangeHandle() { state->abandon(); }
  ExchangeHandle(const ExchangeHandle&) = delete;
  ExchangeHandle& operator=(const ExchangeHandle&) = delete;
  const std::shared_ptr<ExchangeState> state;
};

}  // namespace colossal::http
