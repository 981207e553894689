#include "colossal/http/sockets.h"  // brings <utility>, which the Asio of Boost 1.74 needs before its own headers

#include <poll.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <set>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/http/body_memory.h"
#include "colossal/http/phase_clock.h"
#include "colossal/http/request_input.h"

namespace colossal::http {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kBodyPiece = 64 << 10;  // bytes of a body that are read, and counted, at a time
constexpr size_t kFirstRead = 1024;      // idle connections hold no more
constexpr size_t kLargeBody = 64 << 10;  // bytes of a body that may take its handler long, not milliseconds
constexpr int64_t kMaxRefusing = 64;     // connections above max_connections that get 503

class Connection;

/// The sockets, by Asio. All members but the first four functions belong to the I/O thread.
class AsioSockets : public Sockets {
 public:
  explicit AsioSockets(ServerCore& shared)
      : core(shared), memory(core.options.limits.max_bodies, core.options.limits.max_body) {
    listen();
  }
  void start() override {
    accept();
    thread_ = std::thread([this] { io.run(); });
  }
  std::string address() const override { return endpoint_.address().to_string(); }
  int64_t port() const override { return endpoint_.port(); }
  void begin_stop() override;
  void close_all() override {
    asio::post(io, [this] { end_connections(true); });
  }
  void join() override { work_.reset(), thread_.join(); }
  void resume_bodies();

  ServerCore& core;
  asio::io_context io{1};
  BodyMemory memory;
  std::set<std::shared_ptr<Connection>> open;
  std::vector<std::weak_ptr<Connection>> waiting;  // for memory of bodies
  uint64_t next_number = 1;
  bool is_stopping = false;

 private:
  void listen();
  void accept();
  void end_connections(bool at_once);

  tcp::endpoint endpoint_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io.get_executor()};
  tcp::acceptor acceptor_{io};
  asio::steady_timer accept_timer_{io};
  std::thread thread_;
};

/// One client's connection. All members are used by the I/O thread only. While an answer is under way the connection
/// goes on reading, so that the end of the input cancels the request; bytes of a next request wait in the buffer.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(AsioSockets& server, tcp::socket socket)
      : server_(server),
        socket_(std::move(socket)),
        timer_(server.io),
        parsed_(server.core.options.limits),
        body_(server.memory),
        clock_(server.core.options.limits, server.core.options.silence) {
    ErrorCode error;
    socket_.set_option(tcp::no_delay(true), error);
    socket_.set_option(asio::socket_base::send_buffer_size(64 << 10), error);  // else it takes megabytes unread
    asio::ip::address address = socket_.remote_endpoint(error).address();
    if (address.is_v6() && address.to_v6().is_v4_mapped())
      address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
    remote_address_ = address.to_string();
  }

  void start();
  void start_full();
  void resume_body();
  void stop(bool at_once);

 private:
  void read();
  size_t room_to_read();
  void on_read(const ErrorCode& error, size_t bytes);
  void advance();
  bool passes(const std::optional<ErrorAnswer>& error);
  void on_header();
  void refuse(Response response, bool can_keep_alive);
  void refuse(const ErrorAnswer& error);
  void begin_exchange(bool keep_alive);
  void dispatch();
  void flush();
  void write();
  void on_write(const ErrorCode& error, size_t bytes);
  void finish();
  void give_up(Gone why);
  void report(bool is_complete);
  void release_body();
  void close();
  Time deadline() const { return clock_.deadline(is_reading_, is_writing_, sent_.is_stream); }
  void update_timer();
  void on_timer();
  void on_deadline();
  bool polls(short events) const;
  const ServerLimits& limits() const { return server_.core.options.limits; }

  AsioSockets& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::string remote_address_;
  RequestInput parsed_;
  BodyShare body_;
  PhaseClock clock_;
  std::string input_;  // receives the pending read; `parsed_` may change meanwhile
  const Route* route_ = nullptr;
  std::shared_ptr<ExchangeState> exchange_;
  ExchangeState::Output sent_;  // the last result of take()
  std::string writing_;
  size_t written_ = 0, progress_ = 0;  // bytes of `writing_` that are written; that were when the clock was told
  bool is_reading_ = false, is_writing_ = false, is_closed_ = false;
  RequestEnd end_;
  Time began_;
  Time timer_at_ = Time::max();
};

void Connection::start() {
  read();
  update_timer();
}

void Connection::start_full() {
  const int64_t most = limits().max_connections;
  refuse({.status = 503, .message = concat("the server has ", most, " connections, its maximum: try again later")});
  update_timer();
}

/// Returns how many bytes may be read now; 0 = none.
size_t Connection::room_to_read() {
  const size_t held = parsed_.held(), max_header = static_cast<size_t>(limits().max_header);
  if (clock_.phase() == Phase::kLinger) return kFirstRead;
  if (clock_.phase() != Phase::kBody)
    return held >= max_header ? 0 : std::min(max_header - held, std::max(kFirstRead, 2 * held));
  const auto wanted = static_cast<int64_t>(parsed_.request().body.size() + held + kBodyPiece);
  if (body_.grow_to(std::min(wanted, limits().max_body))) return kBodyPiece;
  server_.waiting.push_back(weak_from_this());
  return 0;
}

void Connection::read() {
  if (is_reading_ || is_closed_) return;
  const size_t room = room_to_read();
  if (room == 0) return;
  is_reading_ = true;
  if (input_.size() > 8 * room) std::string().swap(input_);  // idle connections hold little
  input_.resize(room);
  socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
    self->is_reading_ = false;
    if (!self->is_closed_) self->on_read(error, bytes);
  });
}

void Connection::on_read(const ErrorCode& error, size_t bytes) {
  if (error) return give_up(Gone::kLeft);
  parsed_.add(std::string_view(input_).substr(0, bytes));
  advance();
  if (!is_closed_) update_timer();
}

/// Goes as far as the bytes that have arrived allow.
void Connection::advance() {
  if (clock_.phase() == Phase::kLinger) parsed_.drop_held();
  if (clock_.phase() == Phase::kIdle && parsed_.begin()) clock_.enter(Phase::kHeader);
  if (clock_.phase() == Phase::kHeader && passes(parsed_.parse()) && parsed_.has_header()) on_header();
  if (clock_.phase() == Phase::kBody && passes(parsed_.parse()) && parsed_.is_complete()) dispatch();
  if (!is_closed_) read();
}

/// Refuses the request if there is an error. Returns false then.
bool Connection::passes(const std::optional<ErrorAnswer>& error) {
  if (error) refuse(*error);
  return !error;
}

void Connection::on_header() {
  Request& request = parsed_.request();
  set_target(request, parsed_.target());
  request.id = request_id(request.headers.find("X-Request-Id"));
  request.remote_address = remote_address_, request.number = server_.next_number++;
  began_ = Clock::now();
  end_ = {.number = request.number, .id = request.id, .method = request.method, .remote_address = remote_address_};
  if (!passes(parsed_.check_header())) return;
  const ServerCore& core = server_.core;
  Admitted admitted = admit(request, parsed_.is_http_1_0(), core.is_draining, core.routes, core.admission);
  request.key = end_.key = admitted.key;
  request.rest = admitted.rest;
  route_ = admitted.route;
  if (route_) end_.route = route_->path;
  // If a part of the body is missing, the connection is closed: to read the rest would cost what the refusal saves.
  if (admitted.refusal) return refuse(std::move(*admitted.refusal), parsed_.skip_body());
  if (!passes(parsed_.check_length())) return;
  if (parsed_.is_complete()) return dispatch();
  parsed_.begin_body();
  clock_.enter(Phase::kBody);
  body_.begin();
  if (parsed_.expects_continue()) {
    writing_ = "HTTP/1.1 100 Continue\r\n\r\n";
    write();
  }
}

void Connection::begin_exchange(bool keep_alive) {
  AnswerForm form;
  form.id = end_.id.empty() ? request_id(nullptr) : end_.id;
  if (parsed_.has_header()) form.client = client_of(parsed_.request());
  form.is_head = parsed_.is_head();
  form.is_http_1_0 = parsed_.is_http_1_0();
  form.keep_alive = keep_alive && !server_.core.is_draining;
  end_.id = form.id;
  clock_.enter(Phase::kAnswer);
  sent_ = {};
  exchange_ =
      std::make_shared<ExchangeState>(std::move(form), server_.core.pools, [&io = server_.io, weak = weak_from_this()] {
        asio::post(io, [weak] {
          const auto self = weak.lock();
          if (!self || self->is_closed_) return;
          self->flush();
          if (!self->is_closed_) self->update_timer();
        });
      });
  ++server_.core.running;
}

void Connection::refuse(Response response, bool can_keep_alive) {
  release_body();
  if (end_.number == 0) {
    began_ = Clock::now();
    end_ = {.number = server_.next_number++, .remote_address = remote_address_};
  }
  begin_exchange(can_keep_alive && parsed_.keeps_alive());
  exchange_->answer(response);
}

void Connection::refuse(const ErrorAnswer& error) { refuse(error_response(error), false); }

void Connection::dispatch() {
  begin_exchange(parsed_.keeps_alive());
  const int64_t bytes = body_.complete();
  auto request = std::make_shared<const Request>(parsed_.take());
  const TaskKind kind{.client = client_of(*request), .is_large = request->body.size() > kLargeBody};
  auto run = [&server = server_, route = route_, state = exchange_, request = std::move(request),
              handle = std::make_shared<ExchangeHandle>(exchange_), bytes]() mutable {
    try {
      const Exchange exchange(handle);
      if (!exchange.is_gone()) route->handler(*request, exchange);
    } catch (const std::exception& error) {
      state->answer_exception(error);
    }
    handle.reset();  // not before an exception has been answered
    request.reset();
    if (bytes == 0) return;
    asio::post(server.io, [&server, bytes] {
      server.memory.release(bytes);
      server.resume_bodies();
    });
  };
  route_->is_quick ? run() : server_.core.pools.handlers->post(std::move(run), kind);
  server_.resume_bodies();  // the next reader may be the first one now
}

void Connection::flush() {
  if (!exchange_) return;
  if (is_writing_) {
    const int64_t unread = exchange_->look() - static_cast<int64_t>(writing_.size() - written_);
    // A socket that can be written to has a client that reads: this thread is late, not the client.
    if (sent_.is_stream && unread > limits().max_unread && !polls(POLLOUT)) give_up(Gone::kUnread);
    return;
  }
  sent_ = exchange_->take();
  if (!sent_.bytes.empty()) {
    writing_ = std::move(sent_.bytes);
    return write();
  }
  if (sent_.has_ended) finish();
}

void Connection::write() {
  if (!std::exchange(is_writing_, true)) clock_.progress();
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
                             if (!self->is_closed_) self->on_write(error, bytes);
                           });
}

void Connection::on_write(const ErrorCode& error, size_t bytes) {
  if (error) return give_up(Gone::kLeft);
  written_ += bytes;
  if (exchange_ && sent_.status != 0) exchange_->wrote(bytes);
  const bool is_all = written_ == writing_.size();
  // A client that reads a few bytes at a time would else make the server hold a large answer for hours.
  if (is_all || written_ - progress_ >= static_cast<size_t>(limits().max_unread)) {
    clock_.progress();
    progress_ = written_;
  }
  if (!is_all) return write();
  is_writing_ = false;
  written_ = progress_ = 0;
  writing_.clear();
  flush();
  if (!is_closed_) update_timer();
}

void Connection::finish() {
  const bool keeps_alive = exchange_->keeps_alive() && !server_.core.is_draining;
  exchange_->detach();
  report(!sent_.is_broken);
  parsed_.end();
  if (sent_.is_broken) return close();
  if (!keeps_alive) {
    // Closing now would reset the connection if the client still sends, and the client would lose the answer.
    ErrorCode error;
    socket_.shutdown(tcp::socket::shutdown_send, error);
    clock_.enter(Phase::kLinger);
  } else {
    clock_.enter(Phase::kIdle);
  }
  advance();
}

void Connection::report(bool is_complete) {
  end_.status = sent_.status;
  end_.is_complete = is_complete;
  end_.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  exchange_.reset();
  server_.core.ended(std::exchange(end_, {}));
}

void Connection::give_up(Gone why) {
  if (exchange_) {
    exchange_->leave(why);
    report(false);
  }
  close();
}

/// Returns the memory of a body that no handler will get.
void Connection::release_body() {
  if (!body_.give_up()) return;
  parsed_.drop_body();
  asio::post(server_.io, [&server = server_] { server.resume_bodies(); });  // not from within one of its calls
}

void Connection::close() {
  if (std::exchange(is_closed_, true)) return;
  release_body();
  ErrorCode error;
  socket_.close(error);
  timer_.cancel();
  server_.open.erase(shared_from_this());
  --server_.core.connections;
  server_.core.changed();
}

void Connection::resume_body() {
  if (!body_.waits() || is_closed_) return;
  read();
  update_timer();
}

void Connection::stop(bool at_once) {
  if (!exchange_ || at_once) {
    if (exchange_) return give_up(Gone::kStopped);
    return close();
  }
  exchange_->stop();
}

void Connection::update_timer() {
  const Time at = deadline();
  if (at >= timer_at_ || at == Time::max()) return;  // on_timer() asks again
  timer_at_ = at;
  timer_.expires_at(at);
  timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (!error && !self->is_closed_) self->on_timer();
  });
}

void Connection::on_timer() {
  timer_at_ = Time::max();
  // The end of the input is behind bytes that are not read yet, so that reading cannot find it.
  if (!is_reading_ && polls(POLLRDHUP)) return give_up(Gone::kLeft);
  if (Clock::now() >= deadline()) on_deadline();
  if (!is_closed_) update_timer();
}

void Connection::on_deadline() {
  switch (clock_.phase()) {
    case Phase::kIdle:
    case Phase::kLinger:
      return close();
    case Phase::kHeader:
    case Phase::kBody:
      return refuse(clock_.late_answer(body_.waits()));
    case Phase::kAnswer:
      if (is_writing_) return give_up(Gone::kUnread);
      clock_.progress();
      exchange_->write_events(": waiting\n\n");
  }
}

bool Connection::polls(short events) const {
  pollfd state{const_cast<tcp::socket&>(socket_).native_handle(), events, 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & (events | POLLERR | POLLHUP)) != 0;
}

void AsioSockets::listen() {
  ErrorCode error;
  const std::string host = core.options.host == "localhost" ? "127.0.0.1" : core.options.host;
  const auto address = asio::ip::make_address(host, error);
  require(!error, "serve", "host must be an IP address or localhost: got ", core.options.host, "; set --host");
  require(core.options.port >= 0 && core.options.port < 65536, "serve", "port must be 0 to 65535: got ",
          core.options.port);
  endpoint_ = tcp::endpoint(address, static_cast<uint16_t>(core.options.port));
  acceptor_.open(endpoint_.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint_, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  require(error != asio::error::address_in_use, "serve", "port ", core.options.port, " of ", host,
          " is in use: stop the other program, or choose another port with --port (0 = any free one)");
  require(!error, "serve", "cannot listen on port ", core.options.port, " of ", host, ": ", error.message(),
          "; set --host and --port");
  endpoint_ = acceptor_.local_endpoint();
}

void AsioSockets::accept() {
  acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
    if (is_stopping || error == asio::error::operation_aborted) return;
    if (error) {  // no file is left: the next end of a connection frees one
      accept_timer_.expires_after(std::chrono::milliseconds(100));
      accept_timer_.async_wait([this](const ErrorCode&) {
        if (!is_stopping) accept();
      });
      return;
    }
    const int64_t most = core.options.limits.max_connections;
    if (core.connections < most + kMaxRefusing) {  // else the socket is closed here
      const auto connection = std::make_shared<Connection>(*this, std::move(socket));
      open.insert(connection);
      if (++core.connections <= most)
        connection->start();
      else
        connection->start_full();
    }
    accept();
  });
}

void AsioSockets::resume_bodies() {
  for (const auto& waits : std::exchange(waiting, {}))
    if (const auto connection = waits.lock()) connection->resume_body();
}

void AsioSockets::end_connections(bool at_once) {
  const std::vector<std::shared_ptr<Connection>> all(open.begin(), open.end());
  for (const auto& connection : all) connection->stop(at_once);
}

void AsioSockets::begin_stop() {
  asio::post(io, [this] {
    is_stopping = true;
    ErrorCode error;
    acceptor_.close(error);
    accept_timer_.cancel();
    end_connections(false);
  });
}

}  // namespace

std::unique_ptr<Sockets> make_sockets(ServerCore& core) { return std::make_unique<AsioSockets>(core); }

}  // namespace colossal::http
