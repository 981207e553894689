// Messages over a socket: order, sizes, senders that do not wait, ends.
#include "colossal/serve/replicas/message_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::serve::message_socket_test {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::minutes kPlenty(1);

std::pair<Descriptor, Descriptor> connected() {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  return {Descriptor(pair[0]), Descriptor(pair[1])};
}

/// Collects messages until there are `count`, or the stream ends.
class Collected {
 public:
  explicit Collected(size_t count) : count_(count) {}
  void listen(MessageSocket& socket) {
    socket.start(
        [this](const std::string& message) {
          messages_.push_back(message);
          if (messages_.size() == count_) done_.set_value();
        },
        [this] { ended_.set_value(); });
  }
  std::vector<std::string> wait() {
    EXPECT_EQ(done_.get_future().wait_for(kPlenty), std::future_status::ready);
    return messages_;
  }
  bool waits_for_end() { return ended_.get_future().wait_for(kPlenty) == std::future_status::ready; }

 private:
  const size_t count_;
  std::vector<std::string> messages_;
  std::promise<void> done_, ended_;
};

TEST(MessageSocket, KeepsMessagesWholeAndInOrder) {
  auto [a, b] = connected();
  MessageSocket sender(std::move(a)), receiver(std::move(b));
  std::vector<std::string> messages{"", std::string(3, '\0'), "text"};
  for (const size_t size : {1, 65527, 65528, 65529, 300000}) messages.push_back(std::string(size, 'x') + "end");
  Collected collected(messages.size());
  collected.listen(receiver);
  sender.start([](const std::string&) { ADD_FAILURE() << "no message was sent"; }, [] {});
  for (const std::string& message : messages) sender.send(message);
  EXPECT_EQ(collected.wait(), messages);
}

TEST(MessageSocket, SendsWithoutWaitingForAReader) {
  auto [a, b] = connected();
  MessageSocket sender(std::move(a)), receiver(std::move(b));
  sender.start([](const std::string&) {}, [] {});
  constexpr size_t kMessages = 200;  // 20 MB, more than a socket holds
  for (size_t i = 0; i < kMessages; ++i) sender.send(std::string(100000, 'a' + i % 26));
  Collected collected(kMessages);  // reads only now
  collected.listen(receiver);
  const auto messages = collected.wait();
  for (size_t i = 0; i < kMessages; ++i) EXPECT_EQ(messages[i], std::string(100000, 'a' + i % 26)) << i;
}

TEST(MessageSocket, TakesMessagesOfManyThreads) {
  auto [a, b] = connected();
  MessageSocket sender(std::move(a)), receiver(std::move(b));
  sender.start([](const std::string&) {}, [] {});
  Collected collected(4 * 500);
  collected.listen(receiver);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) sender.send(concat(t, " ", i, std::string(1000, ' ')));
    });
  for (auto& thread : threads) thread.join();
  std::vector<int> next(4, 0);
  for (const std::string& message : collected.wait()) {
    const int thread = message[0] - '0';
    ASSERT_EQ(std::stoi(message.substr(2)), next[thread]++) << "of thread " << thread;
  }
}

TEST(MessageSocket, SendsWhatWaitsBeforeItCloses) {
  auto [a, b] = connected();
  MessageSocket sender(std::move(a)), receiver(std::move(b));
  sender.start([](const std::string&) {}, [] { ADD_FAILURE() << "this end closes"; });
  for (int i = 0; i < 50; ++i) sender.send(std::string(100000, 'x'));
  Collected collected(50);
  collected.listen(receiver);
  sender.close(kPlenty);
  sender.send("too late");
  EXPECT_EQ(collected.wait().size(), 50U);
  EXPECT_TRUE(collected.waits_for_end());
}

TEST(MessageSocket, GivesUpAReaderThatDoesNotRead) {
  auto [a, b] = connected();
  MessageSocket sender(std::move(a));
  sender.start([](const std::string&) {}, [] {});
  sender.send(std::string(10000000, 'x'));
  sender.close(milliseconds(20));  // returns
}

TEST(MessageSocket, ReportsTheEndOfTheOtherEndOnce) {
  auto [a, b] = connected();
  MessageSocket socket(std::move(a));
  Collected collected(1);
  collected.listen(socket);  // a second call of on_end would throw
  b = Descriptor();
  EXPECT_TRUE(collected.waits_for_end());
  for (int i = 0; i < 3; ++i) socket.send("nobody reads this");
  socket.close(milliseconds(0));
}

TEST(MessageSocket, EndsAStreamWithAnImpossibleLength) {
  auto [a, b] = connected();
  MessageSocket socket(std::move(a));
  Collected collected(1);
  collected.listen(socket);
  const uint64_t length = MessageSocket::kMaxMessage + 1;
  ASSERT_EQ(send(b.value(), &length, sizeof length, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof length));
  EXPECT_TRUE(collected.waits_for_end());
}

}  // namespace
}  // namespace colossal::serve::message_socket_test
