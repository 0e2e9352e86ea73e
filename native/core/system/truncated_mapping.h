// Keeps a process alive when a file that it has mapped is truncated: the missing pages become zeros, and the range
// reports this.
//
// A mapped page behind the end of its file raises SIGBUS when it is touched, and no check of the size before a read can
// exclude that the file is cut directly after it. While a MappedRange is alive, a SIGBUS at an address inside it maps a
// page of zeros at this address and marks the range as cut; the interrupted instruction then goes on. Whoever reads the
// range asks `cut()` after each read, and throws away what was read if it is true. It never becomes false again.
//
// The handler of the process is installed with the first range. It leaves every other SIGBUS to the handler that was
// there before, such as the one of Python's faulthandler: other addresses, and errors of the memory itself. A handler
// that another library installs later takes the place of this one, unless it calls the earlier one; a cut then ends the
// process, as without a range.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace cb {

class MappedRange {
 public:
  // The range must be a mapping that lives longer than this object.
  MappedRange(const void* begin, size_t size) {
    install();
    const std::lock_guard<std::mutex> lock(changing());
    place_ = free_place();
    place_->cut.store(false);
    place_->begin.store(reinterpret_cast<uintptr_t>(begin));
    place_->end.store(reinterpret_cast<uintptr_t>(begin) + size);
  }
  ~MappedRange() {
    const std::lock_guard<std::mutex> lock(changing());
    place_->end.store(0);
    place_->begin.store(0);
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  bool cut() const { return place_->cut.load(); }

 private:
  // Places are never freed, because the handler may read the list at any moment; a range that ends leaves its place to
  // another.
  struct Place {
    std::atomic<uintptr_t> begin{0}, end{0};  // end is 0 where the place is free
    std::atomic<bool> cut{false};
    Place* next = nullptr;
  };

  static std::atomic<Place*>& first() {
    static std::atomic<Place*> places{nullptr};
    return places;
  }
  static std::mutex& changing() {
    static std::mutex mutex;
    return mutex;
  }
  static struct sigaction& before() {
    static struct sigaction action = {};
    return action;
  }

  static Place* free_place() {
    for (Place* place = first().load(); place; place = place->next)
      if (place->end.load() == 0) return place;
    Place* made = new Place;
    made->next = first().load();
    first().store(made);
    return made;
  }

  // With each range, because libraries such as Ray (by Python's faulthandler) put a handler of their own in the place
  // of this one.
  static void install() {
    const std::lock_guard<std::mutex> lock(changing());
    struct sigaction now = {};
    sigaction(SIGBUS, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == &on_bus_error) return;
    first().load();  // made before a signal can ask for them
    page_size();
    before() = now;
    struct sigaction action = {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
  }

  static uintptr_t page_size() {
    static const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return size;
  }

  static void on_bus_error(int signal, siginfo_t* info, void* context) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    if (info->si_code == BUS_ADRERR) {  // behind the end of a file
      for (Place* place = first().load(); place; place = place->next) {
        if (at < place->begin.load() || at >= place->end.load()) continue;
        void* page = reinterpret_cast<void*>(at / page_size() * page_size());
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        place->cut.store(true);  // before the zeros are there, for other threads that read them
        // The system call itself, which a handler may use at any moment; sanitizers take the library's function for a
        // write.
        if (syscall(SYS_mmap, page, page_size(), PROT_READ, flags, -1, 0) == -1) break;
        return;
      }
    }
    const struct sigaction& earlier = before();
    // The earlier handler may raise the signal again for this one, as faulthandler does: then the process ends.
    static std::atomic<bool> passing_on{false};
    const bool again = passing_on.exchange(true) && info->si_code <= 0;
    if (!again && (earlier.sa_flags & SA_SIGINFO)) {
      earlier.sa_sigaction(signal, info, context);
      passing_on.store(false);
    } else if (!again && earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
      earlier.sa_handler(signal);
      passing_on.store(false);
    } else {  // the instruction is repeated, and ends the process
      struct sigaction usual = {};
      usual.sa_handler = SIG_DFL;
      sigaction(signal, &usual, nullptr);
    }
  }

  Place* place_;
};

}  // namespace cb
