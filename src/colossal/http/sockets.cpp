#include "colossal/http/sockets.h"  // brings <utility>, which the Asio of Boost 1.74 needs before its own headers

#include <poll.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <set>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/http/body_memory.h"
#include "colossal/http/exchange_state.h"
#include "colossal/http/phase_clock.h"

namespace colossal::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kBodyPiece = 64 << 10;  // bytes of a body that are read, and counted, at a time
constexpr size_t kFirstRead = 1024;      // idle connections hold no more
constexpr int64_t kMaxRefusing = 64;     // connections above max_connections that get 503

/// Builds a Request from the bytes of a connection.
class RequestParser : public beast::http::basic_parser<true> {
 public:
  explicit RequestParser(const ServerLimits& limits) : max_header_(limits.max_header), max_body_(limits.max_body) {
    header_limit(static_cast<uint32_t>(limits.max_header));  // limits one read; count() adds up all reads
    body_limit(UINT64_MAX);  // the connection checks; Boost 1.74 takes boost::none for 0
    eager(false);            // stops after the headers
  }
  Request request;
  std::string target;
  bool is_http_1_0 = false;

 private:
  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view url, int version,
                       ErrorCode& error) override {
    request.method = std::string(method);
    target = std::string(url);
    is_http_1_0 = version == 10;
    count(method.size() + url.size(), error);
  }
  void count(size_t bytes, ErrorCode& error) {
    if ((header_bytes_ += bytes) > static_cast<size_t>(max_header_)) error = beast::http::error::header_limit;
  }
  void on_response_impl(int, beast::string_view, int, ErrorCode&) override {}
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value,
                     ErrorCode& error) override {
    count(name.size() + value.size() + 4, error);  // ": " and the line's end
    if (!is_header_done()) request.headers.add(std::string(name), std::string(value));  // not the trailers
  }
  void on_header_impl(ErrorCode&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(beast::string_view bytes, ErrorCode& error) override {
    std::string& body = request.body;
    const size_t size = body.size() + bytes.size(), limit = static_cast<size_t>(max_body_);
    if (size > limit) {
      error = beast::http::error::body_limit;
      return 0;
    }
    if (size > body.capacity()) body.reserve(std::min(limit, std::max(size, body.capacity() + body.capacity() / 2)));
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(uint64_t, beast::string_view ext, ErrorCode& error) override { count(ext.size(), error); }
  size_t on_chunk_body_impl(uint64_t, beast::string_view bytes, ErrorCode& error) override {
    return on_body_impl(bytes, error);
  }
  void on_finish_impl(ErrorCode&) override {}
  const int64_t max_header_, max_body_;
  size_t header_bytes_ = 0;  // request line, fields, trailers and extensions of chunks
};

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
  void close_all() override { asio::post(io, [this] { end_connections(true); }); }
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
  bool parse();
  void on_header();
  void refuse(Response response, bool can_keep_alive);
  void refuse(int status, const std::string& message);
  bool skips_body();
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
  PhaseClock clock_;
  std::string input_;          // receives the pending read
  beast::flat_buffer buffer_;  // bytes that are not parsed yet
  std::unique_ptr<RequestParser> parser_;
  const Route* route_ = nullptr;
  std::shared_ptr<ExchangeState> exchange_;
  ExchangeState::Output sent_;  // the last result of take()
  std::string writing_;
  size_t written_ = 0;
  bool is_reading_ = false, is_writing_ = false, waits_for_memory_ = false, is_closed_ = false;
  int64_t reader_ = -1, body_bytes_ = 0;  // of BodyMemory
  RequestEnd end_;
  Time began_;
  Time timer_at_ = Time::max();
};

void Connection::start() {
  read();
  update_timer();
}

void Connection::start_full() {
  refuse(503, concat("the server has ", limits().max_connections, " connections, its maximum: try again later"));
  update_timer();
}

/// Returns how many bytes may be read now; 0 = none.
size_t Connection::room_to_read() {
  const size_t held = buffer_.size(), max_header = static_cast<size_t>(limits().max_header);
  if (clock_.phase() == Phase::kLinger) return kFirstRead;
  if (clock_.phase() != Phase::kBody)
    return held >= max_header ? 0 : std::min(max_header - held, std::max(kFirstRead, 2 * held));
  const auto wanted = static_cast<int64_t>(parser_->request.body.size() + held + kBodyPiece);
  const int64_t needed = std::min(wanted, limits().max_body);
  if (needed > body_bytes_) {
    waits_for_memory_ = !server_.memory.take(reader_, needed - body_bytes_);
    if (waits_for_memory_) {
      server_.waiting.push_back(weak_from_this());
      return 0;
    }
    body_bytes_ = needed;
  }
  return kBodyPiece;
}

void Connection::read() {
  if (is_reading_ || is_closed_) return;
  const size_t room = room_to_read();
  if (room == 0) return;
  is_reading_ = true;
  if (input_.size() > 8 * room) std::string().swap(input_);  // idle connections hold little
  input_.resize(room);  // not in the buffer, which may be parsed while this read is pending
  socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
    self->is_reading_ = false;
    if (!self->is_closed_) self->on_read(error, bytes);
  });
}

void Connection::on_read(const ErrorCode& error, size_t bytes) {
  if (error) return give_up(Gone::kLeft);
  buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(input_, bytes)));
  advance();
  if (!is_closed_) update_timer();
}

/// Goes as far as the bytes in the buffer allow.
void Connection::advance() {
  if (clock_.phase() == Phase::kLinger) buffer_.consume(buffer_.size());
  if (clock_.phase() == Phase::kIdle) {
    const auto* bytes = static_cast<const char*>(buffer_.data().data());
    size_t breaks = 0;  // clients of old send a line break after a body
    while (breaks < buffer_.size() && (bytes[breaks] == '\r' || bytes[breaks] == '\n')) ++breaks;
    buffer_.consume(breaks);
    if (buffer_.size() > 0) {
      clock_.enter(Phase::kHeader);
      parser_ = std::make_unique<RequestParser>(limits());
    } else {
      buffer_.shrink_to_fit();
    }
  }
  if (clock_.phase() == Phase::kHeader && parse() && parser_->is_header_done()) on_header();
  if (clock_.phase() == Phase::kBody && parse() && parser_->is_done()) dispatch();
  if (!is_closed_) read();
}

/// Gives the buffer to the parser. Returns false if the request was refused.
bool Connection::parse() {
  while (buffer_.size() > 0 && !parser_->is_done()) {
    ErrorCode error;
    const bool had_header = parser_->is_header_done();
    buffer_.consume(parser_->put(buffer_.data(), error));
    // The rest of the buffer is the beginning of a chunk's line or of the trailers.
    const bool is_long = had_header && buffer_.size() > static_cast<size_t>(limits().max_header);
    if (error == beast::http::error::need_more && !is_long) return true;
    if (is_long || error == beast::http::error::header_limit) {
      refuse(431, concat("the headers must have at most ", limits().max_header, " bytes"));
    } else if (error == beast::http::error::body_limit) {
      refuse(413, concat("the body must have at most ", limits().max_body, " bytes"));
    } else if (error) {
      refuse(400, concat("the request must be HTTP/1.1 or HTTP/1.0: ", error.message()));
    }
    if (error) return false;
    if (!had_header && parser_->is_header_done()) return true;
  }
  return true;
}

void Connection::on_header() {
  Request& request = parser_->request;
  set_target(request, parser_->target);
  request.id = request_id(request.headers.find("X-Request-Id"));
  request.remote_address = remote_address_, request.number = server_.next_number++;
  began_ = Clock::now();
  end_ = {.number = request.number, .id = request.id, .method = request.method, .remote_address = remote_address_};
  if (!request.path.starts_with('/')) return refuse(400, "the target of a request must be a path that begins with /");
  if (request.headers.count("Transfer-Encoding") > 0 && (!parser_->chunked() || parser_->is_http_1_0))
    return refuse(400, "the last Transfer-Encoding of a request must be chunked, in HTTP/1.1");  // where does it end?
  const ServerCore& core = server_.core;
  Admitted admitted = admit(request, parser_->is_http_1_0, core.is_draining, core.routes, core.admission);
  request.key = end_.key = admitted.key;
  request.rest = admitted.rest;
  route_ = admitted.route;
  if (route_) end_.route = route_->path;
  if (admitted.refusal) return refuse(std::move(*admitted.refusal), skips_body());
  const auto length = parser_->content_length();
  if (length && *length > static_cast<uint64_t>(limits().max_body))
    return refuse(413, concat("the body must have at most ", limits().max_body, " bytes: got ", *length));
  if (parser_->is_done()) return dispatch();
  parser_->eager(true);
  clock_.enter(Phase::kBody);
  reader_ = server_.memory.begin();
  if (const std::string* expects = request.headers.find("Expect");
      expects && same_name(*expects, "100-continue") && buffer_.size() == 0 && !parser_->is_http_1_0) {
    writing_ = "HTTP/1.1 100 Continue\r\n\r\n";
    write();
  }
}

/// Removes the body of a request that is refused, if all of it is in the buffer. Returns false if it is not: then the
/// connection is closed, because reading the rest would cost what the refusal saves.
bool Connection::skips_body() {
  if (parser_->is_done()) return true;
  const auto length = parser_->content_length_remaining();
  if (!length || *length > buffer_.size()) return false;
  buffer_.consume(static_cast<size_t>(*length));
  return true;
}

void Connection::begin_exchange(bool keep_alive) {
  AnswerForm form;
  form.id = end_.id.empty() ? request_id(nullptr) : end_.id;
  form.is_head = parser_ && parser_->request.method == "HEAD";
  form.is_http_1_0 = parser_ && parser_->is_http_1_0;
  form.keep_alive = keep_alive && !server_.core.is_draining;
  end_.id = form.id;
  clock_.enter(Phase::kAnswer);
  sent_ = {};
  exchange_ =
      std::make_shared<ExchangeState>(std::move(form), server_.core.tasks, [&io = server_.io, weak = weak_from_this()] {
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
  begin_exchange(can_keep_alive && parser_ && parser_->keep_alive());
  exchange_->answer(response);
}

void Connection::refuse(int status, const std::string& message) {
  refuse(error_response({.status = status, .message = message}), false);
}

void Connection::dispatch() {
  begin_exchange(parser_->keep_alive());
  if (reader_ >= 0) server_.memory.end(std::exchange(reader_, -1));
  auto request = std::make_shared<const Request>(std::move(parser_->request));
  auto run = [&server = server_, route = route_, state = exchange_, request = std::move(request),
              handle = std::make_shared<ExchangeHandle>(exchange_), bytes = std::exchange(body_bytes_, 0)]() mutable {
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
  route_->is_quick ? run() : server_.core.handlers->post(std::move(run));
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
  clock_.progress();
  written_ += bytes;
  if (exchange_ && sent_.status != 0) exchange_->wrote(bytes);
  if (written_ < writing_.size()) return write();
  is_writing_ = false;
  written_ = 0;
  writing_.clear();
  flush();
  if (!is_closed_) update_timer();
}

void Connection::finish() {
  const bool keeps_alive = exchange_->keeps_alive() && !server_.core.is_draining;
  exchange_->detach();
  report(!sent_.is_broken);
  parser_.reset();
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
  const RequestEnd end = std::exchange(end_, {});
  if (server_.core.options.on_end) server_.core.options.on_end(end);
  --server_.core.running;
  server_.core.changed();
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
  waits_for_memory_ = false;
  if (reader_ < 0) return;
  server_.memory.end(std::exchange(reader_, -1));
  server_.memory.release(std::exchange(body_bytes_, 0));
  parser_->request.body = {};
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
  if (!waits_for_memory_ || is_closed_) return;
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
      return refuse(408, concat("the headers must arrive within ", limits().header_timeout, " s"));
    case Phase::kBody:
      if (waits_for_memory_)
        return refuse(503, "the bodies of other requests fill the memory for them: try again later");
      return refuse(408, concat("the body must arrive within ", limits().body_timeout, " s"));
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
