// Messages between two threads or processes of one host over a connected socket.
//
//   serve::MessageSocket socket(std::move(descriptor));
//   socket.start([](const std::string& message) { ... }, [] { other_end_has_ended(); });
//   socket.send("to the other end");
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "colossal/base/descriptor.h"

namespace colossal::serve {

/// One end of a stream of messages. Messages arrive whole and in order. A message is sent with its length before it, so
/// it may have any bytes, up to kMaxMessage.
///
/// Thread safety: any thread may call send().
/// Cost: a system call per message and side. Messages that the other end has not read yet use memory.
class MessageSocket {
 public:
  static constexpr uint64_t kMaxMessage = uint64_t{1} << 32;

  /// `socket` is a connected stream socket (socketpair). Errors: Error("serve", ...) without one.
  explicit MessageSocket(Descriptor socket);
  /// Starts a thread that calls `on_message` with each message and, if the other end closes or breaks the stream,
  /// `on_end` once, as its last call. The functions must not throw and must not call close(). Called at most once.
  void start(std::function<void(const std::string&)> on_message, std::function<void()> on_end);
  /// Calls close(0).
  ~MessageSocket();
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  /// Sends a message. Does not wait for the other end. Does nothing after the end of the stream.
  void send(const std::string& message);
  /// Waits until all messages are sent, at most `limit`, and ends the stream. Afterwards no function is called. Only
  /// the owner calls it.
  void close(std::chrono::milliseconds limit);

 private:
  void run();
  bool read_some();
  bool write_some();

  const Descriptor socket_, wake_;
  std::function<void(const std::string&)> on_message_;
  std::function<void()> on_end_;
  std::string arrived_;  // bytes of messages that are not whole; only the thread uses it
  std::mutex mutex_;
  std::string unsent_;
  bool is_over_ = false, is_closing_ = false;
  std::chrono::steady_clock::time_point deadline_;
  std::thread thread_;
};

}  // namespace colossal::serve
