#include "colossal/serve/replicas/message_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::serve {
namespace {

using SocketClock = std::chrono::steady_clock;

bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

MessageSocket::MessageSocket(Descriptor socket)
    : socket_(std::move(socket)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require(socket_.is_open() && wake_.is_open(), "serve", "cannot connect two replicas: ", std::strerror(errno),
          "; raise the limit of open files (ulimit -n)");
}

void MessageSocket::start(std::function<void(const std::string&)> on_message, std::function<void()> on_end) {
  on_message_ = std::move(on_message);
  on_end_ = std::move(on_end);
  thread_ = std::thread([this] { run(); });
}

MessageSocket::~MessageSocket() { close(std::chrono::milliseconds(0)); }

void MessageSocket::send(const std::string& message) {
  require(message.size() <= kMaxMessage, "serve", "a message between replicas must have at most ", kMaxMessage,
          " bytes: got ", message.size(), "; send fewer tokens in one request");
  const auto size = static_cast<uint64_t>(message.size());
  const std::lock_guard lock(mutex_);
  if (is_over_ || is_closing_) return;
  const bool waits = !unsent_.empty();
  unsent_.append(reinterpret_cast<const char*>(&size), sizeof size);
  unsent_ += message;
  if (waits) return;   // the thread waits for room and goes on with it
  (void)write_some();  // the thread notices a broken stream
  const uint64_t one = 1;
  if (!unsent_.empty()) (void)!write(wake_.value(), &one, sizeof one);
}

void MessageSocket::close(std::chrono::milliseconds limit) {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    deadline_ = SocketClock::now() + limit;
  }
  const uint64_t one = 1;
  (void)!write(wake_.value(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

/// Writes what the socket takes. Returns false if the stream is broken. The caller holds the lock.
bool MessageSocket::write_some() {
  size_t sent = 0;
  bool is_whole = true;
  while (sent < unsent_.size()) {
    const auto count =
        ::send(socket_.value(), unsent_.data() + sent, unsent_.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<size_t>(count);
      continue;
    }
    is_whole = count < 0 && would_wait(errno);
    break;
  }
  unsent_.erase(0, sent);
  return is_whole;
}

/// Reads what has arrived and passes whole messages on. Returns false at the end of the stream.
bool MessageSocket::read_some() {
  char piece[1 << 16];
  const auto count = recv(socket_.value(), piece, sizeof piece, MSG_DONTWAIT);
  if (count <= 0) return count < 0 && would_wait(errno);
  arrived_.append(piece, static_cast<size_t>(count));
  size_t begin = 0;
  uint64_t size = 0;
  while (arrived_.size() - begin >= sizeof size) {
    std::memcpy(&size, arrived_.data() + begin, sizeof size);
    if (size > kMaxMessage) return false;
    if (arrived_.size() - begin - sizeof size < size) break;
    on_message_(arrived_.substr(begin + sizeof size, size));
    begin += sizeof size + size;
  }
  arrived_.erase(0, begin);
  return true;
}

void MessageSocket::run() {
  bool is_broken = false, closes = false;
  while (!is_broken && !closes) {
    pollfd entries[] = {{socket_.value(), POLLIN, 0}, {wake_.value(), POLLIN, 0}};
    int wait = -1;
    {
      const std::lock_guard lock(mutex_);
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - SocketClock::now()).count();
      closes = is_closing_ && (unsent_.empty() || left <= 0);
      if (closes) break;
      if (is_closing_) wait = static_cast<int>(std::min<int64_t>(left, 60000));
      if (!unsent_.empty()) entries[0].events |= POLLOUT;
    }
    if (poll(entries, 2, wait) < 0) continue;
    uint64_t count = 0;
    if (entries[1].revents) (void)!read(wake_.value(), &count, sizeof count);
    if (entries[0].revents & (POLLIN | POLLHUP | POLLERR)) is_broken = !read_some();
    const std::lock_guard lock(mutex_);
    if (!is_broken && (entries[0].revents & POLLOUT)) is_broken = !write_some();
  }
  shutdown(socket_.value(), SHUT_RDWR);
  bool was_closed = false;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    unsent_.clear();
    was_closed = is_closing_;
  }
  if (is_broken && !was_closed) on_end_();
}

}  // namespace colossal::serve
