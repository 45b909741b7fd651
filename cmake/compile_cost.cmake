# SPDX-License-Identifier: MIT
# Measures what a source file costs that uses the library: cmake -P cmake/compile_cost.cmake
# Compiles these files at -O0 with each compiler, in turn, and prints the user seconds of each, the median of ROUNDS (3):
#   standard     the standard and system headers that the library includes, and nothing else
#   include      #include <redlatch/redlatch.hpp>
#   one_rlock    a function that makes a client and a lock, and locks it
#   everything   a function for each primitive
# All but the first in both forms: header-only, and with the library compiled elsewhere (REDLATCH_COMPILED).
# The last column is what the file costs beyond `standard`, in units of `standard`: a slower machine has the same figures.
#   -DCOMPILERS="g++;clang++-14"   uses these compilers; by default c++ or g++, and clang++, where there are
#   -DCHECK=ON                     fails if a file costs more than its bound below. What does is first measured again,
#                                  together with `standard`, up to MORE_ROUNDS (30) times: a busy machine is slower than
#                                  itself from one second to the next
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(work ${root}/build/compile_cost)
if(NOT ROUNDS)
    set(ROUNDS 3)
endif()
if(NOT DEFINED MORE_ROUNDS)
    set(MORE_ROUNDS 30)
endif()
if(NOT COMPILERS)
    find_program(gcc NAMES g++ c++ NO_CACHE)
    find_program(clang NAMES clang++ clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14 NO_CACHE)
    foreach(compiler IN ITEMS gcc clang)
        if(${compiler})
            list(APPEND COMPILERS ${${compiler}})
        endif()
    endforeach()
endif()

# What a file may cost beyond the standard headers, in units of these. On a busy machine the figures vary by a third.
# `include` costs nearly what `one_rlock` costs because at -O0 g++ emits the bodies of all coroutines, also of those that
# nothing uses.
set(bound_header_only_include 21.0)
set(bound_header_only_one_rlock 24.0)
set(bound_header_only_everything 30.0)
set(bound_compiled_include 0.47)
set(bound_compiled_one_rlock 0.63)
set(bound_compiled_everything 1.27)

# The standard and system headers, from all of ours except those of TLS, Asio and unit tests.
file(GLOB_RECURSE headers ${root}/include/redlatch/*.hpp)
list(FILTER headers EXCLUDE REGEX "(tls|openssl|redlatch/asio|redlatch/testing(/.*)?)\\.hpp$")
set(includes "")
foreach(header IN LISTS headers)
    file(STRINGS ${header} lines REGEX "^#include <")
    list(APPEND includes ${lines})
endforeach()
list(REMOVE_DUPLICATES includes)
list(SORT includes)
list(JOIN includes "\n" includes)
file(WRITE ${work}/standard.cpp "${includes}\nint main() {}\n")
file(WRITE ${work}/include.cpp "#include <redlatch/redlatch.hpp>\nint main() {}\n")
file(WRITE ${work}/one_rlock.cpp [[
#include <redlatch/redlatch.hpp>

#include <mutex>

int main() {
    redlatch::Client redis{"redis://127.0.0.1:6379"};
    redlatch::RLock orders{redis, "orders"};
    std::lock_guard guard{orders};
}
]])
file(WRITE ${work}/everything.cpp [[
#include <redlatch/redlatch.hpp>

#include <mutex>
#include <shared_mutex>

template <class Lock>
void use(Lock& lock) {
    std::unique_lock guard{lock};
}

int main() {
    redlatch::Client redis{"redis://127.0.0.1:6379"};
    redlatch::RLock a{redis, "a"}, b{redis, "b"}, c{redis, "c"};
    redlatch::FairLock fair{redis, "fair"};
    redlatch::FencedLock fenced{redis, "fenced"};
    redlatch::SpinLock spin{redis, "spin"};
    redlatch::Mutex mutex{redis, "mutex"};
    redlatch::NonReentrantLock strict{redis, "strict"};
    redlatch::NonReentrantFairLock strict_fair{redis, "strict_fair"};
    redlatch::ReadWriteLock read_write{redis, "read_write"};
    redlatch::MultiLock multi{a, b};
    redlatch::RedLock red{a, b, c};
    use(a), use(fair), use(fenced), use(spin), use(mutex), use(strict), use(strict_fair), use(read_write), use(multi), use(red);
    std::shared_lock reader{read_write};
    redlatch::Semaphore semaphore{redis, "semaphore"};
    semaphore.acquire();
    semaphore.release();
    redlatch::PermitExpirableSemaphore permits{redis, "permits"};
    permits.release(permits.acquire());
    redlatch::CountDownLatch latch{redis, "latch"};
    latch.count_down();
    latch.wait();
}
]])

# Compiles a file once. Sets cost_<form>_<name> to the median of its user times so far, in hundredths of a second. The least
# would compare a lucky moment of the short file, `standard`, with a longer time, in which luck evens out.
function(measure compiler form name)
    set(define "")
    if(form STREQUAL "compiled")
        set(define -DREDLATCH_COMPILED)
    endif()
    execute_process(
        COMMAND sh -c "\"$0\" -std=c++20 -O0 ${define} -I\"$1\" -c \"$2\" -o \"$3\" && times" ${compiler}
            ${root}/include ${work}/${name}.cpp ${work}/${form}_${name}.o
        OUTPUT_VARIABLE said ERROR_VARIABLE errors RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "${compiler} does not compile ${name}.cpp:\n${errors}")
    endif()
    # The second line has the children's times: "0m1.230s 0m0.120s".
    if(NOT said MATCHES "\n([0-9]+)m([0-9]+)[.,]([0-9][0-9])[0-9]*s ")
        message(FATAL_ERROR "the shell's `times` printed:\n${said}")
    endif()
    math(EXPR hundredths "${CMAKE_MATCH_1} * 6000 + ${CMAKE_MATCH_2} * 100 + 1${CMAKE_MATCH_3} - 100")
    set(times ${times_${form}_${name}} ${hundredths})
    list(SORT times COMPARE NATURAL)
    list(LENGTH times count)
    math(EXPR middle "${count} / 2")
    list(GET times ${middle} median)
    set(times_${form}_${name} ${times} PARENT_SCOPE)
    set(cost_${form}_${name} ${median} PARENT_SCOPE)
endfunction()

# Sets `out` to what the file costs beyond the standard headers, in hundredths of these.
function(relative form name out)
    math(EXPR more "${cost_${form}_${name}} - ${cost_header_only_standard}")
    if(more LESS 0) # it needs fewer of the standard headers
        set(more 0)
    endif()
    math(EXPR more "${more} * 100 / ${cost_header_only_standard}")
    set(${out} ${more} PARENT_SCOPE)
endfunction()

# Writes a number of hundredths as a decimal number.
function(as_decimal hundredths out)
    math(EXPR whole "${hundredths} / 100")
    math(EXPR rest "${hundredths} % 100 + 100")
    string(SUBSTRING ${rest} 1 2 rest)
    set(${out} "${whole}.${rest}" PARENT_SCOPE)
endfunction()

set(files header_only/include header_only/one_rlock header_only/everything
    compiled/include compiled/one_rlock compiled/everything)
set(failures "")
foreach(compiler IN LISTS COMPILERS)
    cmake_path(GET compiler FILENAME shown)
    foreach(file IN ITEMS header_only/standard LISTS files)
        string(REPLACE "/" "_" file ${file})
        unset(cost_${file})
        unset(times_${file})
    endforeach()
    set(left ${files})
    set(rounds ${ROUNDS})
    if(CHECK)
        math(EXPR rounds "${ROUNDS} + ${MORE_ROUNDS}")
    endif()
    foreach(round RANGE 1 ${rounds})
        # Everything is measured by this short file, so it gets more samples.
        foreach(sample RANGE 1 3)
            measure(${compiler} header_only standard)
        endforeach()
        set(again "")
        foreach(file IN LISTS left)
            string(REGEX MATCH "(.*)/(.*)" file ${file})
            measure(${compiler} ${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
        endforeach()
        if(round LESS ROUNDS)
            continue()
        endif()
        foreach(file IN LISTS left)
            string(REGEX MATCH "(.*)/(.*)" file ${file})
            set(form ${CMAKE_MATCH_1})
            set(name ${CMAKE_MATCH_2})
            relative(${form} ${name} more)
            as_decimal(${more} more)
            if(more GREATER bound_${form}_${name})
                list(APPEND again ${file})
            endif()
        endforeach()
        set(left ${again})
        if(NOT left)
            break()
        endif()
    endforeach()

    as_decimal(${cost_header_only_standard} seconds)
    message(STATUS "${shown} standard headers ${seconds} s")
    foreach(file IN LISTS files)
        string(REGEX MATCH "(.*)/(.*)" file ${file})
        set(form ${CMAKE_MATCH_1})
        set(name ${CMAKE_MATCH_2})
        relative(${form} ${name} more)
        as_decimal(${more} more)
        as_decimal(${cost_${form}_${name}} seconds)
        file(SIZE ${work}/${form}_${name}.o size)
        math(EXPR size "${size} / 1024")
        string(SUBSTRING "${form}            " 0 12 column)
        string(SUBSTRING "${name}            " 0 12 name)
        message(STATUS "${shown} ${column} ${name} ${seconds} s, object ${size} KiB, ${more} times the standard headers more")
        if(CHECK AND file IN_LIST left)
            list(APPEND failures "${shown}: ${form} ${name} costs ${more}")
        endif()
    endforeach()
endforeach()
if(failures)
    list(JOIN failures "\n" failures)
    message(FATAL_ERROR "More than the bound in ${CMAKE_CURRENT_LIST_FILE}:\n${failures}")
endif()
