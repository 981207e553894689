// A connection that sends any bytes, for tests of a server. Every wait ends after kPatience.
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace colossal::http_test {

/// Ends a test that would otherwise hang; it is no expectation of a time.
inline constexpr int kPatienceMs = 60000;

class RawConnection {
 public:
  /// `receive_bytes`: size of the socket's buffer for what arrives; 0 = the system's.
  explicit RawConnection(int64_t port, int receive_bytes = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~RawConnection() { close(); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  /// Sends the bytes. Returns false if the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  /// Receives once. Returns false at the end of the connection.
  bool receive() {
    pollfd state{socket_, POLLIN, 0};
    if (::poll(&state, 1, kPatienceMs) != 1) {
      ADD_FAILURE() << "nothing arrived; so far: " << received;
      return false;
    }
    char bytes[65536];
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    received.append(bytes, static_cast<size_t>(count));
    return true;
  }
  /// Receives until the text has arrived. Returns false if the connection ends before.
  bool receive_until(std::string_view text) {
    while (received.find(text) == std::string::npos)
      if (!receive()) return received.find(text) != std::string::npos;
    return true;
  }
  /// Receives until the connection ends. Returns everything.
  std::string receive_all() {
    while (receive()) {
    }
    return received;
  }
  /// Receives one answer with a Content-Length, removes it from `received` and returns it.
  std::string receive_answer() {
    if (!receive_until("\r\n\r\n")) return std::exchange(received, {});
    const size_t body = received.find("\r\n\r\n") + 4, length = received.find("Content-Length: ");
    const size_t size = body + (length < body ? std::stoul(received.substr(length + 16)) : 0);
    while (received.size() < size && receive()) {
    }
    const std::string answer = received.substr(0, size);
    received.erase(0, size);
    return answer;
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  std::string received;

 private:
  int socket_;
};

}  // namespace colossal::http_test
