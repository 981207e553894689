#include "colossal/comm/launch/handover.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/seal.h"

namespace colossal::comm {
namespace {

constexpr size_t kMaxCallers = 256;  // limit of callers that have connected but sent no data; one more replaces the
                                     // oldest

/// Returns the result of a system call, which it repeats when a signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

struct Address {
  sockaddr_un value{};
  socklen_t length;
  explicit Address(const std::string& name) {
    const std::string path = std::string(1, '\0') + "colossal-" + name;  // the leading zero makes it abstract
    require(path.size() <= sizeof value.sun_path, "comm", "the socket name \"", name, "\" is too long");
    value.sun_family = AF_UNIX;
    std::memcpy(value.sun_path, path.data(), path.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&value); }
};

bool is_of_this_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket.value(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

/// One byte of data with room for one descriptor.
struct Parcel {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{&byte, 1};
  msghdr message{};
  Parcel() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;
};

void limit_waits(const Descriptor& socket, std::chrono::milliseconds limit) {
  const auto count = std::max<int64_t>(limit.count(), 1);  // because 0 would mean no limit
  const timeval time{count / 1000, count % 1000 * 1000};
  for (const int what : {SO_SNDTIMEO, SO_RCVTIMEO}) setsockopt(socket.value(), SOL_SOCKET, what, &time, sizeof time);
}

}  // namespace

Handover::Handover(Descriptor file)
    : file_(std::move(file)),
      name_(random_text()),
      token_(random_text()),
      listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  const Address address(name_);
  const bool listens = listener_.is_open() && stop_.is_open() &&
                       bind(listener_.value(), address.pointer(), address.length) == 0 &&
                       listen(listener_.value(), SOMAXCONN) == 0;
  require(listens, "comm", "cannot share memory with other ranks: ", std::strerror(errno),
          "; use another transport: backend = \"gloo\"");
  thread_ = std::thread([this] { serve(); });
}

Handover::~Handover() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = uninterrupted([&] { return write(stop_.value(), &one, sizeof one); });
  thread_.join();
}

void Handover::serve() {
  std::deque<Descriptor> callers;
  while (true) {
    std::vector<pollfd> entries{{stop_.value(), POLLIN, 0}, {listener_.value(), POLLIN, 0}};
    for (const auto& caller : callers) entries.push_back({caller.value(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[0].revents) return;
    for (size_t i = callers.size(); i-- > 0;) {
      if (!entries[2 + i].revents) continue;
      answer(callers[i]);
      callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (!entries[1].revents) continue;
    Descriptor caller(accept4(listener_.value(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.is_open() && is_of_this_user(caller)) callers.push_back(std::move(caller));
    const bool is_short_of_descriptors = !caller.is_open() && (errno == EMFILE || errno == ENFILE);
    if (callers.size() > kMaxCallers || (is_short_of_descriptors && !callers.empty()))
      callers.pop_front();
    else if (is_short_of_descriptors)
      poll(entries.data(), 1, 50);  // pauses, because the caller keeps trying and this would be a busy loop
  }
}

void Handover::answer(const Descriptor& caller) const {
  std::string shown(token_.size() + 1, '\0');  // one byte more than the token, so that longer input cannot match
  const auto length = uninterrupted([&] { return recv(caller.value(), shown.data(), shown.size(), MSG_DONTWAIT); });
  if (length < 0 || shown.compare(0, static_cast<size_t>(length), token_) != 0) return;
  Parcel parcel;
  cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = file_.value();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  uninterrupted([&] { return sendmsg(caller.value(), &parcel.message, MSG_DONTWAIT | MSG_NOSIGNAL); });
}

Descriptor take(const std::string& ticket, std::chrono::milliseconds limit, const HandoverWords& words) {
  const auto refuse = [&words](const std::string& why) {
    throw Error("comm",
                concat("cannot get ", words.what, ": ", why,
                       "; ranks that cannot reach each other's sockets, as in containers, must ", words.remedy));
  };
  const auto refuse_for = [&](int error) {
    refuse(error == EAGAIN ? concat("no answer within ", limit.count() / 1000.0, " s") : std::strerror(error));
  };
  const size_t space = ticket.find(' ');
  if (space == std::string::npos) refuse("the rank sent no socket name");
  const Address address(ticket.substr(0, space));
  const std::string token = ticket.substr(space + 1);
  const Descriptor giver(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!giver.is_open()) refuse_for(errno);
  limit_waits(giver, limit);
  if (uninterrupted([&] { return connect(giver.value(), address.pointer(), address.length); }) != 0) refuse_for(errno);
  if (!is_of_this_user(giver)) refuse("its socket belongs to another user");
  const auto sent = uninterrupted([&] { return send(giver.value(), token.data(), token.size(), MSG_NOSIGNAL); });
  if (sent < 0) refuse_for(errno);
  Parcel parcel;
  const auto got = uninterrupted([&] { return recvmsg(giver.value(), &parcel.message, MSG_CMSG_CLOEXEC); });
  if (got < 0) refuse_for(errno);
  const cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  if (got == 0 || !header || header->cmsg_type != SCM_RIGHTS) refuse("the rank sent none");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return Descriptor(descriptor);
}

}  // namespace colossal::comm
