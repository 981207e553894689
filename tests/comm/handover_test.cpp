// Shared memory between processes: the processes that get it, and the errors of other processes.
#include "colossal/comm/launch/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstring>
#include <fstream>

#include "colossal/comm/backends/segment.h"
#include "colossal/comm/launch/rendezvous.h"
#include "colossal/comm/seal.h"
#include "support/thrown_message.h"

namespace colossal::test::handover_test {
namespace {

using comm::Handover;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kLong(60000);

std::string name_in(const std::string& ticket) { return ticket.substr(0, ticket.find(' ')); }
std::string token_in(const std::string& ticket) { return ticket.substr(ticket.find(' ') + 1); }

/// Returns a socket to which connect() or bind() has given the name in the ticket.
template <class Call>
Descriptor socket_of(const std::string& ticket, const Call& call) {
  Descriptor result(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "colossal-" + name_in(ticket);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(call(result.value(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  return result;
}

/// Returns a caller that knows the socket's name.
Descriptor caller_of(const std::string& ticket) { return socket_of(ticket, connect); }

/// Returns true if an answer arrives for `said`; otherwise the other side closes the connection.
bool is_answered(const Descriptor& caller, const std::string& said) {
  char byte;
  send(caller.value(), said.data(), said.size(), MSG_NOSIGNAL);
  return recv(caller.value(), &byte, 1, 0) > 0;
}

TEST(Handover, GivesAllCallersTheSameMemory) {
  Descriptor memory = comm::create_shared_memory(8192);
  const auto own = comm::map_shared_memory(memory, 8192);
  EXPECT_EQ(own->data()[8191], std::byte{0});
  own->data()[8191] = std::byte{7};
  const Handover handover(std::move(memory));
  for (int i = 0; i < 3; ++i) {
    const auto other = comm::map_shared_memory(comm::take(handover.ticket(), kLong), 8192);
    EXPECT_NE(other->data(), own->data());
    EXPECT_EQ(other->data()[8191], std::byte{7});
    other->data()[i] = std::byte{1};
    EXPECT_EQ(own->data()[i], std::byte{1});
  }
}

TEST(Handover, RefusesCallersWithoutTheToken) {
  const Handover handover(comm::create_shared_memory(4096));
  const std::string token = token_in(handover.ticket());
  EXPECT_TRUE(is_answered(caller_of(handover.ticket()), token));
  const std::string zeros(32, '0'), many(100000, 'x');
  for (const std::string& wrong : {zeros, many, token.substr(1), token + "0"})
    EXPECT_FALSE(is_answered(caller_of(handover.ticket()), wrong)) << wrong.size() << " letters";
  const std::string ticket = name_in(handover.ticket()) + " " + zeros;
  EXPECT_THAT(thrown_message([&] { comm::take(ticket, kLong); }), HasSubstr("the rank sent none"));
}

TEST(Handover, RefusesOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Handover handover(comm::create_shared_memory(4096));
  const std::string ticket = handover.ticket(), token = token_in(ticket);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(3);
    const Descriptor caller = caller_of(ticket);
    _exit(is_answered(caller, token) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Handover, IgnoresSilentCallers) {
  const Handover handover(comm::create_shared_memory(4096));
  std::vector<Descriptor> silent;
  for (int i = 0; i < 600; ++i) silent.push_back(caller_of(handover.ticket()));
  EXPECT_TRUE(comm::take(handover.ticket(), kLong).is_open());
}

TEST(Handover, StopsWaitingAfterTheLimit) {
  const std::string ticket = comm::random_text() + " token";
  const Descriptor silent = socket_of(ticket, bind);
  ASSERT_EQ(listen(silent.value(), 1), 0);
  EXPECT_THAT(thrown_message([&] { comm::take(ticket, milliseconds(100)); }), HasSubstr("no answer within 0.1 s"));
}

TEST(Handover, EndsWithItsObject) {
  std::string ticket;
  {
    const Handover handover(comm::create_shared_memory(4096));
    ticket = handover.ticket();
  }
  const std::string message = thrown_message([&] { comm::take(ticket, kLong); });
  EXPECT_THAT(message, HasSubstr("[comm] cannot get the shared memory of a rank on this host: Connection refused"));
  EXPECT_THAT(message, HasSubstr("backend = \"gloo\""));
  EXPECT_THAT(thrown_message([&] { comm::take("nonsense", kLong); }), HasSubstr("sent no socket name"));
}

TEST(SharedMemory, HasNoNameInAnyFileSystem) {
  const auto segment = comm::map_shared_memory(comm::create_shared_memory(4096), 4096);
  std::ostringstream address;
  address << std::hex << reinterpret_cast<uintptr_t>(segment->data());
  std::ifstream maps("/proc/self/maps");
  std::string line, found;
  while (std::getline(maps, line))
    if (line.rfind(address.str(), 0) == 0) found = line;
  EXPECT_THAT(found, HasSubstr("/memfd:colossal (deleted)"));
}

TEST(SharedMemory, RefusesAnotherSize) {
  const Descriptor memory = comm::create_shared_memory(8192);
  EXPECT_THAT(thrown_message([&] { comm::map_shared_memory(memory, 4096); }),
              HasSubstr("must have 4096 bytes: got 8192"));
}

/// Limits the length of all files of this process, including memory without a name, during its lifetime.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : before_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit lower{bytes, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    signal(SIGXFSZ, before_);
  }

 private:
  rlimit limit_{};
  void (*before_)(int);
};

/// Returns the errors of all ranks (threads) of a rendezvous that share memory.
std::vector<std::string> shared(int ranks, size_t bytes, const std::function<void(int, comm::Segment&)>& use) {
  const auto store = comm::Store::in_memory();
  std::vector<std::string> messages(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      messages[r] = thrown_message([&] {
        const auto segment = comm::share_segment({store, "group \"data\"", r, ranks, kLong}, bytes);
        use(r, *segment);
      });
    });
  }
  for (auto& thread : threads) thread.join();
  return messages;
}

TEST(SharedMemory, ReportsAFailedReservationOnEveryRank) {
  const FileLimit limit(1 << 16);
  const auto messages = shared(3, 1 << 20, [](int, comm::Segment&) {});
  for (const auto& message : messages) {
    EXPECT_THAT(message, HasSubstr("[comm] cannot reserve 1048576 bytes of shared memory: File too large"));
    EXPECT_THAT(message, HasSubstr("backend = \"gloo\""));
  }
}

TEST(SharedMemory, IsTheSameForAllRanksOfARendezvous) {
  const auto messages = shared(4, 4096, [](int rank, comm::Segment& segment) {
    auto* words = reinterpret_cast<std::atomic<int>*>(segment.data());
    words[0] += 1 << rank;
    while (words[0] != 15) std::this_thread::yield();
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

}  // namespace
}  // namespace colossal::test::handover_test
