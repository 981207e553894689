#include "colossal/http/exchange.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/foreign_error.h"
#include "colossal/http/exchange_state.h"

namespace colossal::http {
namespace {

/// A value of a header without bytes that could end it.
std::string header_value(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  return text;
}

std::string chunk_of(std::string_view bytes) {
  std::ostringstream size;
  size << std::hex << bytes.size();
  return concat(size.str(), "\r\n", bytes, "\r\n");
}

std::string error_event(const ErrorAnswer& error) { return "data: " + error_json(error) + "\n\n"; }

}  // namespace

ExchangeState::ExchangeState(AnswerForm form, ExchangePools pools, std::function<void()> wake)
    : form_(std::move(form)), pools_(std::move(pools)), wake_(std::move(wake)), keep_alive_(form_.keep_alive) {}

void ExchangeState::add(std::string_view bytes) {
  output_.bytes += bytes;
  unread_ += static_cast<int64_t>(bytes.size());
  if (wake_ && !std::exchange(is_awake_, true)) wake_();
}

std::string ExchangeState::head_of(int status, const std::string& content_type, const Headers& headers,
                                   std::optional<size_t> size) {
  const bool is_chunked = !size && !form_.is_http_1_0;
  if (!size && !is_chunked) keep_alive_ = false;
  std::string head = concat("HTTP/1.1 ", status, ' ', status_phrase(status), "\r\nContent-Type: ", content_type,
                            "\r\nX-Request-Id: ", form_.id, "\r\n");
  for (const auto& [name, value] : headers.fields) head += concat(name, ": ", header_value(value), "\r\n");
  if (size) head += concat("Content-Length: ", *size, "\r\n");
  if (is_chunked) head += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive_) head += "Connection: close\r\n";
  if (keep_alive_ && form_.is_http_1_0) head += "Connection: keep-alive\r\n";
  return head + "\r\n";
}

void ExchangeState::answer_locked(const Response& response) {
  if (output_.status != 0 || gone_) return;
  output_.status = response.status;
  output_.has_ended = true;
  add(head_of(response.status, response.content_type, response.headers, response.body.size()) +
      (form_.is_head ? "" : response.body));
}

void ExchangeState::answer(const Response& response) {
  const std::lock_guard lock(mutex_);
  answer_locked(response);
}

void ExchangeState::answer_exception(const std::exception& error) {
  const auto* refused = dynamic_cast<const RequestError*>(&error);
  const ErrorAnswer answer =
      refused ? refused->answer() : ErrorAnswer{.status = 500, .message = as_error(error).what()};
  bool is_stream = false;
  {
    const std::lock_guard lock(mutex_);
    is_stream = output_.is_stream;
    answer_locked(error_response(answer));
  }
  if (!is_stream) return;
  write_events(error_event(answer));
  end_events();
}

void ExchangeState::begin_events() {
  const std::lock_guard lock(mutex_);
  if (gone_) return;  // if the server has stopped, it has answered in the caller's place
  require(output_.status == 0, "http",
          "a request has one answer: got a stream after an answer; call begin_events() once");
  output_.status = 200;
  output_.is_stream = true;
  Headers headers;
  headers.add("Cache-Control", "no-cache");
  headers.add("X-Accel-Buffering", "no");
  add(head_of(200, "text/event-stream; charset=utf-8", headers, std::nullopt));
}

bool ExchangeState::write_locked(std::string_view bytes) {
  if (gone_ || output_.has_ended || !output_.is_stream) return false;
  if (!form_.is_head) add(form_.is_http_1_0 ? std::string(bytes) : chunk_of(bytes));
  return true;
}

void ExchangeState::end_locked() {
  if (gone_ || output_.has_ended || !output_.is_stream) return;
  output_.has_ended = true;
  add(form_.is_http_1_0 || form_.is_head ? "" : "0\r\n\r\n");
}

bool ExchangeState::write_events(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  return write_locked(bytes);
}

void ExchangeState::end_events() {
  const std::lock_guard lock(mutex_);
  end_locked();
}

void ExchangeState::abandon() {
  const std::lock_guard lock(mutex_);
  answer_locked(error_response({.status = 500, .message = "the request was dropped without an answer"}));
  if (gone_ || output_.has_ended) return;
  output_.has_ended = output_.is_broken = true;
  add("");
}

bool ExchangeState::is_gone() const {
  const std::lock_guard lock(mutex_);
  return gone_.has_value();
}

void ExchangeState::when_gone(std::function<void(Gone)> callback) {
  std::optional<Gone> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = gone_;
    // After the end wake_ is empty: nothing will call the callback, nor destroy it.
    if (!gone && wake_) std::swap(when_gone_, callback);
  }
  if (gone && callback) callback(*gone);
}

void ExchangeState::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (std::exchange(runs_task_, true)) return;
  }
  begin_turn();
}

void ExchangeState::post_long(std::function<void()> task) {
  auto run = [state = shared_from_this(), task = std::move(task)]() mutable {
    try {
      task();
    } catch (const std::exception& error) {
      state->answer_exception(error);
    }
    task = nullptr;  // not before an exception has been answered
  };
  pools_.handlers->post(std::move(run), {.client = form_.client, .is_large = true});
}

void ExchangeState::begin_turn() {
  // A pool that has stopped destroys its tasks without running them. What they own of this exchange must end then.
  struct Turn {
    std::shared_ptr<ExchangeState> state;
    bool has_run = false;
    ~Turn() {
      if (!has_run) state->drop_tasks();
    }
  };
  auto turn = std::make_shared<Turn>();
  turn->state = shared_from_this();
  pools_.tasks->post([turn = std::move(turn)] {
    turn->has_run = true;
    turn->state->run_next_task();
  });
}

void ExchangeState::drop_tasks() {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock: see detach()
  const std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
  runs_task_ = false;  // a later task is posted, and dropped, in turn
}

void ExchangeState::run_next_task() {
  std::function<void()> task;
  {
    const std::lock_guard lock(mutex_);
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  try {
    task();
  } catch (const std::exception& error) {
    answer_exception(error);
  }
  task = nullptr;
  {
    const std::lock_guard lock(mutex_);
    runs_task_ = !tasks_.empty();
    if (!runs_task_) return;
  }
  // Posted again instead of run in a loop, so that other requests have their turn.
  begin_turn();
}

int64_t ExchangeState::unread_bytes() const {
  const std::lock_guard lock(mutex_);
  return unread_;
}

ExchangeState::Output ExchangeState::take() {
  const std::lock_guard lock(mutex_);
  is_awake_ = false;
  std::string bytes = std::exchange(output_.bytes, {});
  Output taken = output_;
  taken.bytes = std::move(bytes);
  return taken;
}

int64_t ExchangeState::look() {
  const std::lock_guard lock(mutex_);
  is_awake_ = false;
  return unread_;
}

void ExchangeState::wrote(size_t bytes) {
  const std::lock_guard lock(mutex_);
  unread_ -= static_cast<int64_t>(bytes);
}

void ExchangeState::leave(Gone why) {
  std::function<void(Gone)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      gone_ = why;
      callback = std::exchange(when_gone_, nullptr);
      output_.bytes = {};
      unread_ = 0;
      output_.has_ended = output_.is_broken = true;
      if (wake_ && !std::exchange(is_awake_, true)) wake_();
      wake_ = nullptr;
    }
  }
  if (callback) callback(why);
  detach();
}

void ExchangeState::stop() {
  const ErrorAnswer error{.status = 503, .message = "the server is stopping: send the request again later"};
  std::function<void(Gone)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || output_.has_ended) return;
    answer_locked(error_response(error));
    write_locked(error_event(error));
    end_locked();
    gone_ = Gone::kStopped;
    callback = std::exchange(when_gone_, nullptr);
  }
  if (callback) callback(Gone::kStopped);
}

void ExchangeState::detach() {
  std::function<void(Gone)> callback;  // destroyed without the lock, because it may own the last handle
  const std::lock_guard lock(mutex_);
  callback = std::exchange(when_gone_, nullptr);
  wake_ = nullptr;
}

bool ExchangeState::keeps_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_ && !output_.is_broken;
}

bool EventStream::send(std::string_view text) {
  std::string event;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    event += concat("data: ", text.substr(begin, end - begin), '\n');
    begin = end + 1;
  }
  return handle_->state->write_events(event + "\n");
}

bool EventStream::comment(std::string_view text) {
  return handle_->state->write_events(concat(": ", header_value(std::string(text)), "\n\n"));
}

void EventStream::end() { handle_->state->end_events(); }
bool EventStream::is_gone() const { return handle_->state->is_gone(); }
int64_t EventStream::unread_bytes() const { return handle_->state->unread_bytes(); }

void Exchange::answer(Response response) { handle_->state->answer(response); }

EventStream Exchange::begin_events() {
  handle_->state->begin_events();
  return EventStream(handle_);
}

bool Exchange::is_gone() const { return handle_->state->is_gone(); }
void Exchange::when_gone(std::function<void(Gone)> callback) { handle_->state->when_gone(std::move(callback)); }

void Exchange::post(std::function<void()> task) {
  // The task keeps the answer open; it is destroyed before the handle.
  handle_->state->post([handle = handle_, task = std::move(task)] { task(); });
}

void Exchange::post_long(std::function<void()> task) {
  handle_->state->post_long([handle = handle_, task = std::move(task)] { task(); });
}

}  // namespace colossal::http
